"""Figures from what was seen: quantiles, and how soon a server was in full use again after it changed."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from simulation.steps import Steps

SPAN = 5
"""Seconds over which use is averaged."""
CHANGED = 0.15
"""Share by which capacity must change to count."""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def jumps(capacity: Steps) -> list[float]:
    """When a capacity changes by more than 15 % to something above 0."""
    found = []
    for when, old, new in zip(capacity.times[1:], capacity.values, capacity.values[1:], strict=False):
        if new > 0 and abs(new - old) > CHANGED * max(old, new):
            found.append(when)
    return found


def recovered(useful: Sequence[float], capacity: Steps, change: float, end: float, share: float) -> float:
    """Seconds from a change until that share of the capacity is used, on an average of 5 s; ``end - change`` if it never is.

    Args:
        useful: work done until each whole second.
        capacity: work a second.
    """
    for second in range(ceil(change), int(min(end, len(useful) - 1)) - SPAN + 1):
        if useful[second + SPAN] - useful[second] >= share * capacity.integral(second, second + SPAN):
            return second - change
    return end - change
