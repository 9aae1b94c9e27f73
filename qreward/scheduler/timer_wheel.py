"""Timing wheel: everything that is due at some time, in buckets of 1/64 s.

A heap with lazy deletion would keep each finished item until its deadline; here nothing dead stays.
The width is a power of two, so that bucket numbers and their times convert exactly (no float livelock).
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil
from typing import Protocol

PER_SECOND = 64


class Timed(Protocol):
    """Anything that can be due. ``due`` belongs to the wheel: the bucket it is in, or -1."""

    due: int


class TimerWheel:
    """Items by the time they are due; adding and removing cost the same at any size."""

    __slots__ = ("_buckets", "_heap", "_known")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Timed, None]] = {}
        self._heap: list[int] = []
        self._known: set[int] = set()  # what is in the heap: a bucket that empties and fills again is pushed once

    def add(self, item: Timed, when: float) -> None:
        """Make an item due at ``when`` (seconds), or at most one bucket later; it must not be in the wheel."""
        bucket = ceil(when * PER_SECOND)
        item.due = bucket
        items = self._buckets.get(bucket)
        if items is None:
            self._buckets[bucket] = {item: None}
            if bucket not in self._known:
                self._known.add(bucket)
                heappush(self._heap, bucket)
        else:
            items[item] = None

    def remove(self, item: Timed) -> None:
        """Take an item out, if it is in."""
        bucket = item.due
        if bucket < 0:
            return
        item.due = -1
        items = self._buckets[bucket]
        del items[item]
        if not items:
            del self._buckets[bucket]

    def move(self, item: Timed, when: float) -> None:
        """Make an item due at another time."""
        self.remove(item)
        self.add(item, when)

    def next_wake(self) -> float | None:
        """The time of the earliest bucket that holds something, or None."""
        heap = self._heap
        while heap:
            if heap[0] in self._buckets:
                return heap[0] / PER_SECOND
            self._known.discard(heappop(heap))
        return None

    def pop_due(self, now: float) -> list[Timed]:
        """Take out all that is due at ``now``, earliest first, in the order it was added within a bucket."""
        due: list[Timed] = []
        heap = self._heap
        while heap and heap[0] / PER_SECOND <= now:
            bucket = heappop(heap)
            self._known.discard(bucket)
            for item in self._buckets.pop(bucket, ()):
                item.due = -1
                due.append(item)
        return due

    def __len__(self) -> int:
        return sum(len(items) for items in self._buckets.values())
