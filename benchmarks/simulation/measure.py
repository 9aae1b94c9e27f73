"""Quantiles, and the time until a server is fully used again after a change of its capacity."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from simulation.steps import Steps

SPAN = 5
"""Seconds over which the used capacity is averaged."""
CHANGED = 0.15
"""Relative change of the capacity from which the change counts."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def jumps(capacity: Steps) -> list[float]:
    """Return the times at which a capacity changes by more than 15 % to a value above 0."""
    found = []
    for when, old, new in zip(capacity.times[1:], capacity.values, capacity.values[1:], strict=False):
        if new > 0 and abs(new - old) > CHANGED * max(old, new):
            found.append(when)
    return found


def recovered(useful: Sequence[float], capacity: Steps, change: float, end: float, share: float) -> float:
    """Return the seconds from a change until a share of the capacity is used, averaged over 5 s; ``end - change`` if it never is.

    Args:
        useful: work done until each whole second.
        capacity: work per second.
        change: time of the change in seconds.
        end: end of the observation in seconds.
        share: share of the capacity, from 0 to 1.
    """
    for second in range(ceil(change), int(min(end, len(useful) - 1)) - SPAN + 1):
        if useful[second + SPAN] - useful[second] >= share * capacity.integral(second, second + SPAN):
            return second - change
    return end - change
