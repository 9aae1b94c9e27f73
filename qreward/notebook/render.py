"""HTML of ``client.stats()``, of a batch result and of a verdict, and the tables, numbers and SVG plots in this HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from qreward.errors import QRewardError
    from qreward.results import BatchResult, BatchStats, EndpointState, EndpointStats

MOST_ROWS = 50
"""Maximum number of rows of a table. The number of omitted rows is shown below the table."""
LINE = "rgba(128,128,128,.4)"
"""Colour of borders, visible on white and on black."""


def clip(text: str, most: int) -> str:
    """Return the first ``most`` characters of a text, with the number of omitted characters. A shorter text is returned unchanged."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def seconds(value: float) -> str:
    """Return a duration in a readable form, such as ``12 ms`` or ``3.40 s``."""
    if value < 0.9995:
        return f"{1000 * value:.0f} ms" if value >= 0.00995 else f"{1000 * value:.1f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:,.0f} s"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}".removesuffix(".0")


def facts(parts: Iterable[str]) -> str:
    """Return the escaped parts as one line. A browser breaks the line only between parts. Empty parts are left out."""
    return " · ".join(escape(part).replace(" ", "\N{NO-BREAK SPACE}") for part in parts if part)


def frame(*content: str) -> str:
    """Return the outer element of an output. Its class names prevent a notebook from rendering dollar signs as formulas."""
    return f'<div class="tex2jax_ignore mathjax_ignore" style="color:inherit;font-size:13px;line-height:1.5">{"".join(content)}</div>'


class Column(NamedTuple):
    """A column of a table."""

    name: str
    means: str
    cell: Callable[[Any], str]
    words: bool = False

    def html(self, tag: str, content: str) -> str:
        layout = "text-align:left" if self.words else "text-align:right;white-space:nowrap"
        return f'<{tag} style="{layout};padding:2px 6px;border-bottom:1px solid {LINE}">{content}</{tag}>'


def table(columns: Iterable[Column], rows: Sequence[object]) -> str:
    """Return a table of the first ``MOST_ROWS`` rows. Columns in which all cells are empty are left out."""
    shown = rows[:MOST_ROWS]
    kept = [(column, cells) for column in columns if any(cells := [column.cell(row) for row in shown])]
    head = "".join(column.html("th", f'<span title="{escape(column.means)}">{escape(column.name)}</span>') for column, _ in kept)
    lines = "".join(f"<tr>{''.join(column.html('td', cells[at]) for column, cells in kept)}</tr>" for at in range(len(shown)))
    more = f"<div>and {len(rows) - MOST_ROWS:,} more</div>" if len(rows) > MOST_ROWS else ""
    look = "border-collapse:collapse;margin:6px 0;color:inherit;font-size:12px"
    return f'<div style="overflow-x:auto"><table style="{look}"><tr>{head}</tr>{lines}</table>{more}</div>'


MOST_ERROR = 160
"""Maximum number of characters that are shown of an error message."""
MOST_ANSWER = 400
"""Maximum number of characters that are shown of an answer."""


def stats_html(endpoints: Mapping[str, EndpointStats]) -> str:
    count = f"<b>{number(len(endpoints))} endpoint{'' if len(endpoints) == 1 else 's'}</b>"
    return frame(count, endpoints_table(endpoints))


def batch_html(batch: BatchResult[Any]) -> str:
    times = sorted(result.latency for result in batch if result.error is None)
    errors = errors_table(result.error for result in batch if result.error is not None)
    said = ""
    if (size := len(times)) > 0:
        places = {"shortest": 0, "p50": (size - 1) // 2, "p95": (95 * size - 1) // 100, "longest": -1}
        shown = facts(f"{name} {seconds(times[place])}" for name, place in places.items())
        said = f"<div>latency of {number(size)} answers: {shown}</div>"
    return frame(f"<b>{_sums(batch.stats)}</b>", endpoints_table(batch.stats.endpoints), errors, said)


def endpoints_table(endpoints: Mapping[str, EndpointStats]) -> str:
    """Return a table of the statistics of each endpoint and of its present state, if it is known; ``""`` without endpoints."""
    columns = [
        Column("endpoint", "its name", lambda row: escape(row[0]), words=True),
        Column("sent", "requests", lambda row: number(row[1].sent)),
        Column("answered", "requests that were answered", lambda row: number(row[1].answered)),
        Column("rejected", "rejected because of a rate limit or overload", _count("rejected")),
        Column("failed", "failed otherwise", _count("failed")),
        Column("cancelled", "cancelled by the client or its caller", _count("cancelled")),
        Column("retried", "requests sent again after a failure", _count("retried")),
        Column("hedged", "copies of requests that were in flight at another endpoint", _count("hedged")),
        Column("tokens in", "prompt tokens, as far as the server reports them", _count("prompt_tokens")),
        Column("out", "completion tokens, as far as the server reports them", _count("completion_tokens")),
        Column("p50", "half of the answers took at most this long", _quantile("p50")),
        Column("p95", "95 % of the answers took at most this long", _quantile("p95")),
        Column("p99", "99 % of the answers took at most this long", _quantile("p99")),
        Column("now", "ready, or why it takes no requests", _of_state(_obstacle), words=True),
        Column("in flight", "requests sent and not answered yet", _of_state(lambda state: number(state.in_flight))),
        Column("window", "maximum number of requests in flight", _of_state(lambda state: number(state.window))),
        Column("because", "why its window last changed", _of_state(lambda state: state.why_window), words=True),
    ]
    return table(columns, list(endpoints.items())) if endpoints else ""


def _of_state(shown: Callable[[EndpointState], str]) -> Callable[[tuple[str, EndpointStats]], str]:
    return lambda row: "" if row[1].state is None else escape(shown(row[1].state))


def _count(field: str) -> Callable[[tuple[str, EndpointStats]], str]:
    return lambda row: number(found) if (found := getattr(row[1], field)) else ""


def _quantile(field: str) -> Callable[[tuple[str, EndpointStats]], str]:
    return lambda row: "" if (found := getattr(row[1], field)) is None else seconds(found)


def _obstacle(state: EndpointState) -> str:
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
    """Return a table with a row for each type of error, the most frequent first, or ``""`` if there are no errors."""
    counts: Counter[str] = Counter()
    first: dict[str, QRewardError] = {}
    for error in errors:
        name = type(error).__name__
        counts[name] += 1
        first.setdefault(name, error)
    columns = [
        Column("error", "its type", lambda row: escape(row[0]), words=True),
        Column("items", "items that failed with it", lambda row: number(row[1])),
        Column("the first of them", "its message", lambda row: escape(clip(str(first[row[0]]), MOST_ERROR)), words=True),
    ]
    return table(columns, counts.most_common()) if counts else ""


def verdict_html(verdict: Any, outcome: str, attributes: Mapping[str, float] | None = None) -> str:
    """Return the HTML of a ``Verdict`` or a ``Comparison``. It shows the outcome, and tables of attributes, criteria and votes."""
    used, score = verdict.usage, f"{verdict.score:g}"
    line = facts([
        "" if outcome == score else f"score {score}",
        f"{number(len(verdict.votes))} votes" if len(verdict.votes) > 1 else "",
        "" if used is None or used.total_tokens is None else f"{number(used.total_tokens)} tokens",
        "cached" if verdict.cached else "",
    ])  # fmt: skip
    columns = (
        Column("attribute", "its name", lambda row: escape(str(row[0])), words=True),
        Column("value", "as the reward model returned it", lambda row: f"{row[1]:g}"),
    )
    named = table(columns, list(attributes.items())) if attributes else ""
    criteria = getattr(verdict, "criteria", None)
    answered = table(_CRITERIA, list(criteria.items())) if criteria else ""
    return frame(f"<b>{escape(outcome)}</b>{' · ' if line else ''}{line}", named, answered, table(_VOTES, verdict.votes))


def _reason(vote: Any) -> str:
    """Return the ``reason`` of the parsed verdict. If the verdict has no reason, return the text of the answer."""
    reason = getattr(vote.verdict, "reason", None)
    return escape(clip(reason if isinstance(reason, str) and reason else vote.text, MOST_ANSWER))


def _gate(result: Any) -> str:
    return "" if result.gate is None else f"{result.gate:g}" if result.passed else f"<b>below {result.gate:g}</b>"


_CRITERIA = (
    Column("criterion", "its name", lambda row: escape(row[0]), words=True),
    Column("score", "from 0 to 1, of the first vote", lambda row: f"{row[1].score:g}"),
    Column("weight", "in the score of the rubric", lambda row: f"{row[1].weight:g}"),
    Column("gate", "a score below it makes the score of the rubric 0", lambda row: _gate(row[1])),
    Column("confidence", "of a decision", lambda row: "" if row[1].confidence is None else f"{row[1].confidence:.2f}"),
)
_VOTES = (
    Column("model", "the judge model", lambda vote: escape(vote.model), words=True),
    Column("score", "the score of its answer", lambda vote: f"{vote.score:g}"),
    Column("shown", "in which order the two responses were shown", lambda vote: "second first" if vote.swapped else "", words=True),
    Column("reason", "the reason of the verdict, or the answer as received", _reason, words=True),
)
