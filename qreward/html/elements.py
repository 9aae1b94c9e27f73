"""Words, numbers, and tables as HTML. Knows nothing of what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

MOST_ROWS = 50
"""Rows of a table; what is left out is counted below it."""
LINE = "rgba(128,128,128,.4)"
"""Of borders: seen on white and on black."""


def clip(text: str, most: int) -> str:
    """The beginning of a long text, with a note on how much more there is."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def seconds(value: float) -> str:
    """A time as people read it."""
    if value < 0.9995:
        return f"{1000 * value:.0f} ms" if value >= 0.00995 else f"{1000 * value:.1f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:,.0f} s"


def number(value: float) -> str:
    """A count or a rate as people read it."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}".removesuffix(".0")


def facts(parts: Iterable[str]) -> str:
    """One line of escaped words, broken between parts only; what is empty is left out."""
    return " · ".join(escape(part).replace(" ", "\N{NO-BREAK SPACE}") for part in parts if part)


def frame(*content: str) -> str:
    """What is shown at once. The class names keep a notebook from taking dollar signs for formulas."""
    return f'<div class="tex2jax_ignore mathjax_ignore" style="color:inherit;font-size:13px;line-height:1.5">{"".join(content)}</div>'


class Column(NamedTuple):
    """Of a table.

    Attributes:
        name: its heading, of which ``means`` is the explanation.
        cell: from a row to HTML, ``""`` if it has nothing to say.
        words: it holds words, not numbers.
    """

    name: str
    means: str
    cell: Callable[[Any], str]
    words: bool = False

    def html(self, tag: str, content: str) -> str:
        """A cell with this content."""
        layout = "text-align:left" if self.words else "text-align:right;white-space:nowrap"
        return f'<{tag} style="{layout};padding:2px 6px;border-bottom:1px solid {LINE}">{content}</{tag}>'


def table(columns: Iterable[Column], rows: Sequence[object]) -> str:
    """A line for each of the first ``MOST_ROWS`` rows; a column in which no cell says anything is left out."""
    shown = rows[:MOST_ROWS]
    kept = [(column, cells) for column in columns if any(cells := [column.cell(row) for row in shown])]
    head = "".join(column.html("th", f'<span title="{escape(column.means)}">{escape(column.name)}</span>') for column, _ in kept)
    lines = "".join(f"<tr>{''.join(column.html('td', cells[at]) for column, cells in kept)}</tr>" for at in range(len(shown)))
    more = f"<div>and {len(rows) - MOST_ROWS:,} more</div>" if len(rows) > MOST_ROWS else ""
    look = "border-collapse:collapse;margin:6px 0;color:inherit;font-size:12px"
    return f'<div style="overflow-x:auto"><table style="{look}"><tr>{head}</tr>{lines}</table>{more}</div>'
