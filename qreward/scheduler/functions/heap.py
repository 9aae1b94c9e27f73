"""A priority queue whose items can be moved and removed. The heap entry of a removed item is emptied, and deleted later."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SWEEP = 64
"""Number of empty entries that a heap may hold, in addition to one entry for each item, before all empty entries are deleted."""


class IndexedHeap(Generic[T]):
    """Keeps items ordered by rank, each item once. Items of equal rank are ordered by number, then in the order in which they were put."""

    __slots__ = ("_entries", "_heap", "_pushes")

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []  # rank, number, a serial number that makes the entry unique, and the item or None
        self._entries: dict[T, list[Any]] = {}
        self._pushes = 0

    def put(self, item: T, rank: float, number: int = 0) -> None:
        entry = self._entries.get(item)
        if entry is not None:
            if entry[0] == rank and entry[1] == number:
                return
            entry[3] = None
        self._pushes += 1  # so that items are never compared
        entry = self._entries[item] = [rank, number, self._pushes, item]
        heappush(self._heap, entry)
        self._sweep()

    def drop(self, item: T) -> None:
        entry = self._entries.pop(item, None)
        if entry is not None:
            entry[3] = None  # so that the removed item can be garbage collected
            self._sweep()

    def first(self) -> T | None:
        heap = self._heap
        while heap:
            item: T | None = heap[0][3]
            if item is not None:
                return item
            heappop(heap)
        return None

    def rank(self) -> float:
        if not self._heap or self.first() is None:
            return inf
        rank: float = self._heap[0][0]
        return rank

    def take(self) -> T:
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

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SWEEP:
            self._heap = list(self._entries.values())
            heapify(self._heap)
