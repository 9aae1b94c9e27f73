"""What ``client.stats()`` and the result of a batch look like in a notebook. Shows counts, times and errors, and no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from qreward.html.elements import Column, clip, facts, frame, number, seconds, table
from qreward.html.plots import Scale, histogram, spread

if TYPE_CHECKING:
    from qreward.errors import QRewardError
    from qreward.results import BatchResult, BatchStats, EndpointState, EndpointStats

    Row = tuple[str, EndpointStats]

MOST_WORDS = 160
"""Characters of an error's message."""


def stats_html(endpoints: Mapping[str, EndpointStats]) -> str:
    """What endpoints did, and where they stand."""
    count = f"<b>{number(len(endpoints))} endpoint{'' if len(endpoints) == 1 else 's'}</b>"
    return frame(count, endpoints_table(endpoints), states_table(endpoints))


def batch_html(batch: BatchResult[Any]) -> str:
    """What a batch did: how many, how fast, at which endpoints, and what went wrong."""
    times = histogram(result.latency for result in batch if result.error is None)
    errors = errors_table(result.error for result in batch if result.error is not None)
    return frame(f"<b>{_sums(batch.stats)}</b>", endpoints_table(batch.stats.endpoints), errors, times)


def endpoints_table(endpoints: Mapping[str, EndpointStats]) -> str:
    """What each endpoint did, with the quantiles of its answers as a plot, too."""
    scale = Scale.of(time for stats in endpoints.values() for time in (stats.p50, stats.p99) if time is not None)
    columns = [
        _NAME,
        Column("sent", "requests", lambda row: number(row[1].sent)),
        Column("answered", "requests that were answered", lambda row: number(row[1].won)),
        Column("rejected", "turned away: over a limit, or overloaded", _count("rejected")),
        Column("failed", "failed otherwise", _count("failed")),
        Column("cancelled", "stopped by the client or its caller", _count("cancelled")),
        Column("retried", "of those sent, those sent again after a failure", _count("retried")),
        Column("hedged", "of those sent, copies of a request under way elsewhere", _count("hedged")),
        Column("tokens in", "prompt tokens, as far as the server tells", _count("prompt_tokens")),
        Column("out", "completion tokens, as far as the server tells", _count("completion_tokens")),
        Column("p50", "half of the answers took at most this long", _quantile("p50")),
        Column("p95", "95 % of the answers took at most this long", _quantile("p95")),
        Column("latency", "dot p50, tick p95, end p99; logarithmic, one scale for all rows", lambda row: _spread(row[1], scale)),
    ]
    return table(columns, list(endpoints.items())) if endpoints else ""


def states_table(endpoints: Mapping[str, EndpointStats]) -> str:
    """Where each endpoint stands; ``""`` if that is not known."""
    rows = [(name, stats.state) for name, stats in endpoints.items() if stats.state is not None]
    columns = [
        _NAME,
        Column("now", "what keeps it from being asked", lambda row: escape(_standing(row[1])), words=True),
        Column("in flight", "requests under way", lambda row: number(row[1].in_flight)),
        Column("window", "requests that may be under way", lambda row: number(row[1].window)),
        Column("because", "why its window last changed", lambda row: escape(row[1].why_window), words=True),
    ]
    return table(columns, rows) if rows else ""


_NAME = Column("endpoint", "its name", lambda row: escape(row[0]), words=True)


def _count(field: str) -> Callable[[Row], str]:
    return lambda row: number(found) if (found := getattr(row[1], field)) else ""


def _quantile(field: str) -> Callable[[Row], str]:
    return lambda row: "" if (found := getattr(row[1], field)) is None else seconds(found)


def _spread(stats: EndpointStats, scale: Scale) -> str:
    if stats.p50 is None or stats.p95 is None or stats.p99 is None:
        return ""
    return spread(stats.p50, stats.p95, stats.p99, scale)


def _standing(state: EndpointState) -> str:
    return f"{state.obstacle}, for {seconds(state.ready_in)}" if state.ready_in else state.obstacle


def _sums(stats: BatchStats) -> str:
    prompt, completion = (sum(getattr(each, f"{kind}_tokens") for each in stats.endpoints.values()) for kind in ("prompt", "completion"))
    return facts(
        [
            f"{number(stats.items)} items",
            f"{number(stats.ok)} ok",
            f"{number(stats.failed)} failed",
            seconds(stats.seconds),
            f"{number(stats.items / stats.seconds)} items/s" if stats.seconds else "",
            f"{number(prompt)} tokens in, {number(completion)} out" if prompt or completion else "",
            "" if stats.cost is None else f"${stats.cost:,.4f}",
        ]
    )


def errors_table(errors: Iterable[QRewardError]) -> str:
    """A row for each type of error, the most frequent first; ``""`` if there are none."""
    counts: Counter[str] = Counter()
    first: dict[str, QRewardError] = {}
    for error in errors:
        name = type(error).__name__
        counts[name] += 1
        first.setdefault(name, error)
    columns = [
        Column("error", "its type", lambda row: escape(row[0]), words=True),
        Column("items", "that ended so", lambda row: number(row[1])),
        Column("the first of them", "what it said", lambda row: escape(clip(str(first[row[0]]), MOST_WORDS)), words=True),
    ]
    return table(columns, counts.most_common()) if counts else ""
