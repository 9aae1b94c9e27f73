"""The event queue of a simulation, and its only clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Protocol

Entry = tuple[float, int, Callable[[Any], None], Any]


class Unsettled(Protocol):
    """An object whose next event depends on all events at one time. It plans its next event after all of these events have run."""

    def settle(self) -> None: ...


class Agenda:
    """A heap of events. Events at the same time run in the order in which they were planned.

    Attributes:
        now: present time in seconds.
        heap: entries (time, sequence number, callback, argument).
        unsettled: objects to settle before the clock advances.
    """

    __slots__ = ("_number", "heap", "now", "unsettled")

    def __init__(self) -> None:
        self.now = 0.0
        self.heap: list[Entry] = []
        self.unsettled: list[Unsettled] = []
        self._number = count().__next__

    def at(self, when: float, what: Callable[[Any], None], argument: Any = None) -> None:
        """Schedule the call ``what(argument)`` at the time ``when`` in seconds."""
        heappush(self.heap, (when, self._number(), what, argument))

    def settle(self) -> None:
        """Settle all unsettled objects. Called when all events at the present time have run."""
        waiting, self.unsettled = self.unsettled, []
        for each in waiting:
            each.settle()

    def run(self, over: Callable[[], bool], until: float = inf) -> None:
        """Run events until ``over``, until a time, or until no event is left."""
        heap = self.heap
        while not over():
            if self.unsettled:
                self.settle()
            if not heap or heap[0][0] > until:
                self.now = until if until < inf else self.now
                return
            self.now, _, what, argument = heappop(heap)
            what(argument)
