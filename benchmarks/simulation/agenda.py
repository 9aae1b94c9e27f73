"""What will happen, in the order of time; the only clock of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from itertools import count
from typing import Any, Protocol

Entry = tuple[float, int, Callable[[Any], None], Any]


class Unsettled(Protocol):
    """Something whose next event depends on all that happens at one time, and is found when that is over."""

    def settle(self) -> None: ...


class Agenda:
    """A heap of events, first planned first among those of one time.

    Attributes:
        now: seconds.
        heap: (when, number, what, its argument).
        unsettled: to be settled before time goes on.
    """

    __slots__ = ("_number", "heap", "now", "unsettled")

    def __init__(self) -> None:
        self.now = 0.0
        self.heap: list[Entry] = []
        self.unsettled: list[Unsettled] = []
        self._number = count().__next__

    def at(self, when: float, what: Callable[[Any], None], argument: Any = None) -> None:
        """Let ``what(argument)`` happen at ``when`` (seconds)."""
        heappush(self.heap, (when, self._number(), what, argument))

    def settle(self) -> None:
        """End the present instant."""
        waiting, self.unsettled = self.unsettled, []
        for each in waiting:
            each.settle()
