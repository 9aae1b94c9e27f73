"""Runs the events of an agenda on a running event loop in virtual time, when the loop's clock reaches them."""

from __future__ import annotations

import asyncio
from heapq import heappop

from simulation.agenda import Agenda


class Pump:
    """One timer for the whole agenda, set to its first event.

    The clock of the loop leads, and the agenda follows. The clock advances by a nanosecond per iteration, so code must call ``enter``
    before it uses an object driven by the agenda. Unsettled objects are settled at the end of the iteration.
    """

    def __init__(self, agenda: Agenda, loop: asyncio.AbstractEventLoop) -> None:
        self._agenda, self._loop = agenda, loop
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None

    def enter(self) -> None:
        """Advance the agenda to the loop's time."""
        self._advance(self._loop.time())
        if self._turn is None:
            self._turn = self._loop.call_soon(self._end_turn)

    def close(self) -> None:
        """Cancel the timer and run no further events."""
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()

    def _advance(self, now: float) -> None:
        agenda, heap = self._agenda, self._agenda.heap
        while heap and heap[0][0] <= now:
            if agenda.unsettled:
                agenda.settle()  # it may plan an earlier event
            when, _, what, argument = heappop(heap)
            agenda.now = max(agenda.now, when)
            what(argument)
        agenda.now = max(agenda.now, now)

    def _end_turn(self) -> None:
        self._turn = None
        self._agenda.settle()
        self._arm()

    def _arm(self) -> None:
        heap, timer = self._agenda.heap, self._timer
        if not heap or (timer is not None and timer.when() <= heap[0][0]):
            return
        if timer is not None:
            timer.cancel()
        self._timer = self._loop.call_at(heap[0][0], self._due, heap[0][0])

    def _due(self, when: float) -> None:
        self._timer = None
        self._advance(max(when, self._loop.time()))  # a loop may be early by its clock's resolution
        if self._turn is None:  # otherwise the pending end of the iteration does it
            self._end_turn()
