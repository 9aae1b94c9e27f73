"""A priority queue whose items can be moved and removed. Stale heap entries are swept out before they accumulate."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

SWEEP = 64
"""Stale entries that a heap may hold before it is swept, in addition to as many as it has items."""


class IndexedHeap(Generic[T]):
    """A heap in which each item has one position. Items of equal rank are ordered by their numbers."""

    __slots__ = ("_entries", "_heap", "_pushes")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, T]] = []
        self._entries: dict[T, tuple[float, int, int, T]] = {}  # the only valid entry of each item
        self._pushes = 0

    def put(self, item: T, rank: float, number: int = 0) -> None:
        """Add an item, or change its rank."""
        entry = self._entries.get(item)
        if entry is not None and entry[0] == rank and entry[1] == number:
            return
        self._pushes += 1  # so that items are never compared
        entry = self._entries[item] = (rank, number, self._pushes, item)
        heappush(self._heap, entry)
        self._sweep()

    def drop(self, item: T) -> None:
        if self._entries.pop(item, None) is not None:
            self._sweep()

    def first(self) -> T | None:
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[3]) is entry:
                return entry[3]
            heappop(heap)
        return None

    def rank(self) -> float:
        """Return the rank of the first item; inf if the heap is empty."""
        return inf if not self._heap or self.first() is None else self._heap[0][0]

    def take(self) -> T:
        """Remove and return the first item. The heap must not be empty."""
        item = self.first()
        assert item is not None
        heappop(self._heap)
        del self._entries[item]
        return item

    def empty(self) -> list[T]:
        items = [entry[3] for entry in sorted(self._entries.values())]
        self._entries.clear()
        self._heap.clear()
        return items

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SWEEP:
            self._heap = list(self._entries.values())
            heapify(self._heap)
