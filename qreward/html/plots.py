"""Times as small plots, in SVG. Knows nothing of whose times they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from math import log
from typing import NamedTuple

from qreward.html.elements import facts, number, seconds

BARS = 40
SHORTEST = 1e-6
"""Seconds; what is less is drawn as if it were this."""
_PITCH, _MARGIN, _HEIGHT = 8, 30, 80  # pixels: from bar to bar, beside them, in all


class Scale(NamedTuple):
    """Places from 0 to 1 for times, logarithmic."""

    low: float
    high: float

    @classmethod
    def of(cls, times: Iterable[float]) -> Scale:
        """From the shortest to the longest; wider if they are alike."""
        found = [max(time, SHORTEST) for time in times] or [1.0]
        low, high = min(found), max(found)
        return cls(low, high) if high > 1.01 * low else cls(low / 2, high * 2)

    def place(self, time: float) -> float:
        """Where a time lies."""
        return log(max(time, SHORTEST) / self.low) / log(self.high / self.low)

    def at(self, place: float) -> float:
        """Which time lies there."""
        return float(self.low * (self.high / self.low) ** place)


def spread(p50: float, p95: float, p99: float, scale: Scale) -> str:
    """Three quantiles on a line: a dot, a tick, and its end."""
    dot, tick, end = (5 + 90 * scale.place(time) for time in (p50, p95, p99))
    line = f'<path d="M{dot:.1f} 7H{end:.1f}M{tick:.1f} 3V11" stroke="currentColor" fill="none"/>'
    says = f"p50 {seconds(p50)}, p95 {seconds(p95)}, p99 {seconds(p99)}"
    return _svg(100, 14, says, f'{line}<circle cx="{dot:.1f}" cy="7" r="3.5" fill="currentColor"/>')


def histogram(times: Iterable[float]) -> str:
    """How many of the times are how long; ``""`` if there are none. Quantiles are exact, by nearest rank."""
    ordered = sorted(times)
    if not ordered:
        return ""
    scale, size = Scale.of((ordered[0], ordered[-1])), len(ordered)
    p50, p95 = ordered[(size - 1) // 2], ordered[(95 * size - 1) // 100]
    counts = _counts(ordered, scale)
    bars = "".join(_bar(at, count / max(counts)) for at, count in enumerate(counts) if count)
    marks = _mark("p50", scale.place(p50), "end") + _mark("p95", scale.place(p95), "start")
    ground = f'<path d="M{_MARGIN} {_HEIGHT - 0.5}h{_PITCH * BARS}" stroke="currentColor"/>'
    said = [f"shortest {seconds(ordered[0])}", f"p50 {seconds(p50)}", f"p95 {seconds(p95)}", f"longest {seconds(ordered[-1])}"]
    plot = _svg(2 * _MARGIN + _PITCH * BARS, _HEIGHT, ", ".join(said), f'<g fill="currentColor">{bars}{marks}{ground}</g>')
    return f"<div>{plot}<div>latency of {number(size)} answers, logarithmic: {facts(said)}</div></div>"


def _counts(ordered: Sequence[float], scale: Scale) -> list[int]:
    """How many are in each of ``BARS`` equal parts of the scale."""
    ends = [bisect_left(ordered, scale.at(bar / BARS)) for bar in range(1, BARS)]
    return [after - before for before, after in pairwise([0, *ends, len(ordered)])]


def _bar(at: int, share: float) -> str:
    height = max(1.0, (_HEIGHT - 18) * share)  # one of a million is seen, too
    return f'<rect x="{_MARGIN + _PITCH * at}" y="{_HEIGHT - 1 - height:.1f}" width="7" height="{height:.1f}" fill-opacity=".5"/>'


def _mark(name: str, place: float, anchor: str) -> str:
    x = _MARGIN + _PITCH * BARS * place
    line = f'<path d="M{x:.1f} 4V{_HEIGHT - 1}" stroke="currentColor" stroke-dasharray="3 2" fill="none"/>'
    return f'{line}<text x="{x + (3 if anchor == "start" else -3):.1f}" y="11" font-size="10" text-anchor="{anchor}">{name}</text>'


def _svg(width: int, height: int, says: str, content: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    look = "max-width:none;color:inherit;vertical-align:middle"
    return f'<svg {size} role="img" style="{look}"><title>{escape(says)}</title>{content}</svg>'
