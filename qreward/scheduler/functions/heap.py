"""Things in the order of a number each, of which any may move or leave: a heap in which nothing dead stays for long."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")

SWEEP = 64
"""Dead entries, besides as many as there are live ones, that may lie in a heap before they are thrown out."""


class IndexedHeap(Generic[T]):
    """Each thing has one place. Those of equal rank go in the order of their numbers."""

    __slots__ = ("_heap", "_places", "_tickets")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, T]] = []
        self._places: dict[T, tuple[float, int, int, T]] = {}  # of all entries for a thing only this one lives
        self._tickets = 0

    def put(self, thing: T, rank: float, number: int = 0) -> None:
        """Give a thing its place, whether it has one or not."""
        place = self._places.get(thing)
        if place is not None and place[0] == rank and place[1] == number:
            return
        self._tickets += 1  # so that things are never compared
        place = self._places[thing] = (rank, number, self._tickets, thing)
        heappush(self._heap, place)
        self._sweep()

    def drop(self, thing: T) -> None:
        """Take a thing out, if it is in."""
        if self._places.pop(thing, None) is not None:
            self._sweep()

    def first(self) -> T | None:
        """The one whose turn it is, which stays."""
        heap, places = self._heap, self._places
        while heap:
            place = heap[0]
            if places.get(place[3]) is place:
                return place[3]
            heappop(heap)
        return None

    def rank(self) -> float:
        """The rank of the first; inf if there is none."""
        return inf if self.first() is None else self._heap[0][0]

    def take(self) -> T:
        """Take the first out; there must be one."""
        thing = self.first()
        assert thing is not None
        heappop(self._heap)
        del self._places[thing]
        return thing

    def empty(self) -> list[T]:
        """Take all out, in order."""
        things = [place[3] for place in sorted(self._places.values())]
        self._places.clear()
        self._heap.clear()
        return things

    def __contains__(self, thing: T) -> bool:
        return thing in self._places

    def __len__(self) -> int:
        return len(self._places)

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._places) + SWEEP:
            self._heap = list(self._places.values())
            heapify(self._heap)
