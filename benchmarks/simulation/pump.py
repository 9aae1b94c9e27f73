"""Plays an agenda on a running event loop whose time is virtual: its events happen when the loop's clock comes to them."""

from __future__ import annotations

import asyncio
from heapq import heappop

from simulation.agenda import Agenda


class Pump:
    """One timer for the whole agenda, set for the first event.

    The loop's clock leads: it moves by a nanosecond each turn, so whoever touches what the agenda drives calls ``enter`` first.
    What is unsettled is settled at the end of the turn.
    """

    def __init__(self, agenda: Agenda, loop: asyncio.AbstractEventLoop) -> None:
        self._agenda, self._loop = agenda, loop
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None

    def enter(self) -> None:
        """Come up to the loop's time."""
        self._advance(self._loop.time())
        if self._turn is None:
            self._turn = self._loop.call_soon(self._end_turn)

    def close(self) -> None:
        """Nothing happens any more."""
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()

    def _advance(self, now: float) -> None:
        agenda, heap = self._agenda, self._agenda.heap
        while heap and heap[0][0] <= now:
            if agenda.unsettled:
                agenda.settle()  # what it plans may come first
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
        if self._turn is None:  # else that does it
            self._end_turn()
