"""What people look at: tables and numbers as text and HTML, the HTML of statistics, batches and verdicts, and outputs of notebook cells."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.errors import QRewardError
    from qreward.results import BatchResult, BatchStats, EndpointStats
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


def table(rows: Sequence[Mapping[str, str]], words: Collection[str] = ()) -> str:
    """Return an HTML table of the first ``MOST_ROWS`` rows, in which all texts are escaped; ``""`` without rows. See :func:`text_table`."""
    if not rows:
        return ""
    shown = rows[:MOST_ROWS]
    heads = _heads(shown)

    def line(tag: str, cells: Iterable[tuple[str, str]]) -> str:
        def cell(head: str, text: str) -> str:
            layout = "text-align:left" if head in words else "text-align:right;white-space:nowrap"
            return f'<{tag} style="{layout};padding:2px 6px;border-bottom:1px solid {LINE}">{escape(text)}</{tag}>'

        return f"<tr>{''.join(cell(head, text) for head, text in cells)}</tr>"

    lines = line("th", ((head, head) for head in heads)) + "".join(line("td", ((head, row[head]) for head in heads)) for row in shown)
    more = f"<div>and {len(rows) - MOST_ROWS:,} more</div>" if len(rows) > MOST_ROWS else ""
    look = "border-collapse:collapse;margin:6px 0;color:inherit;font-size:12px"
    return f'<div style="overflow-x:auto"><table style="{look}">{lines}</table>{more}</div>'


def text_table(rows: Sequence[Mapping[str, str]], words: Collection[str] = ()) -> list[str]:
    """Return the lines of a table of at least one row. The keys of the first row are the heads.

    Columns in which all cells are empty are left out. Those in ``words`` are aligned to the left.
    """
    heads = _heads(rows)
    lines = [dict(zip(heads, heads, strict=True)), *rows]
    widths = {head: max(len(line[head]) for line in lines) for head in heads}
    adjust = {head: str.ljust if head in words else str.rjust for head in heads}
    return ["  ".join(adjust[head](line[head], widths[head]) for head in heads).rstrip() for line in lines]


def _heads(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [head for head in rows[0] if any(row[head] for row in rows)]


class Cell:
    """One output of a notebook cell. It is updated when the content changes. Frontends that cannot show HTML show the plain text."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown: dict[str, str] = {}

    def show(self, html: str, plain: str) -> None:
        page = {"text/html": html, "text/plain": plain}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(page, raw=True, display_id=True)
        elif page != self._shown:
            self._handle.update(page, raw=True)
        self._shown = page


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
    return table([_of_endpoint(name, stats) for name, stats in endpoints.items()], ("endpoint", "now", "because"))


def _of_endpoint(name: str, stats: EndpointStats) -> dict[str, str]:
    counts = {"tokens in": stats.prompt_tokens, "out": stats.completion_tokens}
    counts = {each: getattr(stats, each) for each in ("rejected", "failed", "cancelled", "retried", "hedged")} | counts
    row = {"endpoint": name, "sent": number(stats.sent), "answered": number(stats.answered)}
    row |= {head: number(count) if count else "" for head, count in counts.items()}
    row |= {head: "" if (time := getattr(stats, head)) is None else seconds(time) for head in ("p50", "p95", "p99")}
    if (state := stats.state) is None:
        return row | dict.fromkeys(("now", "in flight", "window", "because"), "")
    now = f"{state.obstacle}, for {seconds(state.ready_in)}" if state.ready_in else state.obstacle
    return row | {"now": now, "in flight": number(state.in_flight), "window": number(state.window), "because": state.why_window}


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
    kinds: dict[str, list[QRewardError]] = {}
    for error in errors:
        kinds.setdefault(type(error).__name__, []).append(error)
    rows = []
    for name, found in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        rows.append({"error": name, "items": number(len(found)), "the first of them": clip(str(found[0]), MOST_ERROR)})
    return table(rows, ("error", "the first of them"))


def verdict_html(verdict: Any, outcome: str, attributes: Mapping[str, float] | None = None) -> str:
    """Return the HTML of a ``Verdict`` or a ``Comparison``. It shows the outcome, and tables of attributes, criteria and votes."""
    used, score = verdict.usage, f"{verdict.score:g}"
    line = facts([
        "" if outcome == score else f"score {score}",
        f"{number(len(verdict.votes))} votes" if len(verdict.votes) > 1 else "",
        "" if used is None or used.total_tokens is None else f"{number(used.total_tokens)} tokens",
        "cached" if verdict.cached else "",
    ])  # fmt: skip
    named = table([{"attribute": str(name), "value": f"{value:g}"} for name, value in (attributes or {}).items()], ("attribute",))
    criteria = getattr(verdict, "criteria", None) or {}
    answered = table([_of_criterion(name, result) for name, result in criteria.items()], ("criterion",))
    votes = table([_of_vote(vote) for vote in verdict.votes], ("model", "shown", "reason"))
    return frame(f"<b>{escape(outcome)}</b>{' · ' if line else ''}{line}", named, answered, votes)


def _of_criterion(name: str, result: Any) -> dict[str, str]:
    gate = "" if result.gate is None else f"{result.gate:g}" if result.passed else f"below {result.gate:g}"
    confidence = "" if result.confidence is None else f"{result.confidence:.2f}"
    return {"criterion": name, "score": f"{result.score:g}", "weight": f"{result.weight:g}", "gate": gate, "confidence": confidence}


def _of_vote(vote: Any) -> dict[str, str]:
    reason = getattr(vote.verdict, "reason", None)
    said = clip(reason if isinstance(reason, str) and reason else vote.text, MOST_ANSWER)
    return {"model": vote.model, "score": f"{vote.score:g}", "shown": "second first" if vote.swapped else "", "reason": said}
