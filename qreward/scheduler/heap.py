"""A priority queue whose items can be moved and removed. Stale heap entries are swept out before they accumulate."""

from __future__ import annotations

from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

SWEEP = 64
"""Stale entries that a heap may hold before it is swept, in addition to as many as it has items."""


class IndexedHeap(Generic[T]):
    """A heap in which each item has one position. Items of equal rank are ordered by their numbers, then by when they were put."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, T]] = []
        self._places: dict[T, tuple[float, int, int, T]] = {}  # the only valid entry of each item
        self._tickets = 0

    def put(self, thing: T, rank: float, number: int = 0) -> None:
        """Add an item, or change its rank."""
        place = self._places.get(thing)
        if place is not None and place[0] == rank and place[1] == number:
            return
        self._tickets += 1  # so that items are never compared
        place = self._places[thing] = (rank, number, self._tickets, thing)
        heappush(self._heap, place)
        if len(self._heap) > 2 * len(self._places) + SWEEP:
            self._sweep()

    def drop(self, thing: T) -> None:
        """Remove an item if it is in the heap."""
        if self._places.pop(thing, None) is not None and len(self._heap) > 2 * len(self._places) + SWEEP:
            self._sweep()

    def first(self) -> T | None:
        """Return the first item without removing it, or None."""
        heap, places = self._heap, self._places
        while heap:
            place = heap[0]
            if places.get(place[3]) is place:
                return place[3]
            heappop(heap)
        return None

    def rank(self) -> float:
        """Return the rank of the first item; inf if the heap is empty."""
        return inf if self.first() is None else self._heap[0][0]

    def take(self) -> T:
        """Remove and return the first item. The heap must not be empty."""
        thing = self.take_outside(())
        assert thing is not None
        return thing

    def take_outside(self, avoided: Container[T]) -> T | None:
        """Remove and return the first item that is not in ``avoided``, or None."""
        heap, places = self._heap, self._places
        aside, found = [], None
        while heap:
            place = heappop(heap)
            thing = place[3]
            if places.get(thing) is not place:
                continue
            if thing not in avoided:
                del places[thing]
                found = thing
                break
            aside.append(place)
        for place in aside:
            heappush(heap, place)
        return found

    def empty(self) -> list[T]:
        """Remove and return all items, in order."""
        things = [place[3] for place in sorted(self._places.values())]
        self._places.clear()
        self._heap.clear()
        return things

    def __contains__(self, thing: T) -> bool:
        return thing in self._places

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in any order."""
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _sweep(self) -> None:
        self._heap = list(self._places.values())
        heapify(self._heap)
