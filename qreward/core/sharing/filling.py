"""Max-min fairness: whoever wants least gets it, and the rest is equal (water filling; Bertsekas and Gallager, Data Networks, 6.5.2)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf


def level(amount: float, vessels: Iterable[tuple[float, float]]) -> float:
    """How high an amount stands in connected vessels, inf if they hold less.

    Args:
        amount: what is poured in.
        vessels: (height of the bottom, how much it holds) of each; a vessel holds one unit for each unit of height.

    Example:
        >>> level(10.0, [(0.0, 2.0), (0.0, 9.0), (0.0, 9.0)])
        4.0
        >>> level(2.0, [(0.0, 9.0), (5.0, 9.0)])
        2.0
        >>> level(30.0, [(0.0, 2.0), (0.0, 9.0)])
        inf
    """
    edges = sorted(edge for bottom, room in vessels if room > 0 for edge in ((bottom, 1), (bottom + room, -1)))
    height, open_ones = 0.0, 0
    for at, change in edges:
        if open_ones:
            if (at - height) * open_ones >= amount:
                return height + amount / open_ones
            amount -= (at - height) * open_ones
        height, open_ones = at, open_ones + change
    return inf


def part(height: float, bottom: float, room: float) -> float:
    """What stands in one of the vessels."""
    return min(room, max(0.0, height - bottom))
