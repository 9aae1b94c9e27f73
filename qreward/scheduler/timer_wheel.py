"""A timer wheel with buckets of 1/64 s: a removed item is deleted at once, which a heap would keep until its deadline.

The bucket width is a power of two, so that bucket numbers and times convert exactly. Otherwise a rounded wake time could lie before its
bucket, and cause an endless loop.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil
from typing import Protocol

PER_SECOND = 64  # buckets


class Timed(Protocol):
    """An item with a timer. ``due`` is the number of its bucket, or -1 while it is in no bucket."""

    due: int


class TimerWheel:
    """Keeps items ordered by due time. The cost of adding and removing does not grow with the number of items."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Timed, None]] = {}
        self._heap: list[int] = []
        self._known: set[int] = set()  # the buckets in the heap, so that a bucket that empties and fills again is not pushed twice

    def add(self, item: Timed, when: float) -> None:
        """Add an item that is not in the wheel. It is due at ``when`` (seconds), rounded up to the next bucket."""
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
        bucket = item.due
        if bucket < 0:
            return
        item.due = -1
        items = self._buckets[bucket]
        del items[item]
        if not items:
            del self._buckets[bucket]

    def move(self, item: Timed, when: float) -> None:
        self.remove(item)
        self.add(item, when)

    def next_wake(self) -> float | None:
        """Return the time of the earliest bucket with an item, or None."""
        heap = self._heap
        while heap:
            if heap[0] in self._buckets:
                return heap[0] / PER_SECOND
            self._known.discard(heappop(heap))
        return None

    def pop_due(self, now: float) -> list[Timed]:
        """Remove and return the items due at ``now``, earliest first. Items of one bucket keep the order in which they were added."""
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
