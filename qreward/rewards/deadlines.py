"""When items are too late: one entry for all items of a list whose time began together."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from qreward.batching.backlog import OVER

if TYPE_CHECKING:
    from qreward.rewards.member import Member

SWEEP = 64
"""Entries before the first look for those of which nothing is left."""


class Deadlines:
    """The deadlines of items that wait or are under way. Pure."""

    __slots__ = ("_entries", "_most", "_numbers")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, list[Member]]] = []
        self._numbers = count()
        self._most = SWEEP

    def add(self, members: list[Member], until: float) -> None:
        """Items that have the same time."""
        heappush(self._entries, (until, next(self._numbers), members))
        if len(self._entries) > self._most:
            self._entries = [entry for entry in self._entries if _lives(entry[2])]
            heapify(self._entries)
            self._most = 2 * len(self._entries) + SWEEP

    def next(self) -> float | None:
        """The earliest that still matters, or None."""
        while self._entries and not _lives(self._entries[0][2]):
            heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def due(self, now: float) -> list[Member]:
        """Those whose time has passed, each once."""
        late: list[Member] = []
        while self._entries and self._entries[0][0] <= now:
            late += [member for member in heappop(self._entries)[2] if member.place is not OVER]
        return late


def _lives(members: list[Member]) -> bool:
    return any(member.place is not OVER for member in members)
