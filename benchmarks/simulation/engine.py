"""The processing of admitted requests by a simulated server, each at its own speed or all at a shared speed.

An engine also counts the work ``delivered``, and how much of it was ``wasted`` on requests that failed.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Protocol

from qreward.scheduler.task import Attempt
from simulation.agenda import Agenda
from simulation.laws import Alone, Law

Done = Callable[[Attempt], None]
NEARLY = 1e-6
"""Remaining work, in tokens, below which a request counts as done. It is larger than rounding errors and too small to matter."""


class Engine(Protocol):
    """Works on requests and calls back when one is done."""

    wasted: float

    def start(self, attempt: Attempt, size: float) -> None:
        """Start a request, or queue it."""

    def stop(self, attempt: Attempt) -> None:
        """Cancel a request."""

    def delivered(self) -> float:
        """Return all work done until now."""


def make_engine(agenda: Agenda, law: Law, done: Done) -> Engine:
    """Return the engine for a speed model."""
    if isinstance(law, Alone) and not law.changes():
        return Separate(agenda, law.speed(1, 0.0), done)
    return Sharing(agenda, law, done)


class Separate:
    """Requests do not affect each other."""

    __slots__ = ("_agenda", "_delivered", "_done", "_running", "_speed", "_then", "wasted")

    def __init__(self, agenda: Agenda, speed: float, done: Done) -> None:
        self._agenda, self._speed, self._done = agenda, speed, done
        self._running: dict[Attempt, float] = {}
        self._delivered = self._then = self.wasted = 0.0

    def start(self, attempt: Attempt, size: float) -> None:
        self.delivered()
        self._running[attempt] = self._agenda.now
        self._agenda.at(self._agenda.now + size / self._speed, self._due, attempt)

    def stop(self, attempt: Attempt) -> None:
        self.delivered()
        begun = self._running.pop(attempt, None)
        if begun is not None:
            self.wasted += (self._agenda.now - begun) * self._speed

    def delivered(self) -> float:
        now = self._agenda.now
        self._delivered += (now - self._then) * len(self._running) * self._speed
        self._then = now
        return self._delivered

    def _due(self, attempt: Attempt) -> None:
        if attempt in self._running:
            self.delivered()
            del self._running[attempt]
            self._done(attempt)


class Sharing:
    """All requests have the same speed, which depends on their number (processor sharing).

    ``_work`` is the work that would have been done on a request that was present from the beginning. A request is done when ``_work`` has
    grown by its size. So an event costs O(log n), however often the speed changes.
    """

    def __init__(self, agenda: Agenda, law: Law, done: Done) -> None:
        self._agenda, self._law, self._done = agenda, law, done
        self._running: dict[Attempt, float] = {}  # value of _work at the start
        self._order: list[tuple[float, int, Attempt]] = []  # value of _work at the end
        self._waiting: dict[Attempt, float] = {}
        self._number = count().__next__
        self._work = self._delivered = self.wasted = 0.0
        self._then = self._stalled = 0.0
        self._planned = inf
        self._unsettled = False
        self._law_since(0.0)
        for when in law.changes():
            agenda.at(when, self._law_changes, when)

    def start(self, attempt: Attempt, size: float) -> None:
        self.delivered()
        self._waiting[attempt] = size
        self._fill()

    def stop(self, attempt: Attempt) -> None:
        self.delivered()
        begun = self._running.pop(attempt, None)
        if begun is None:
            self._waiting.pop(attempt, None)
        else:
            self.wasted += self._work - begun
        self._fill()

    def delivered(self) -> float:
        now, since = self._agenda.now, max(self._then, self._stalled)
        if now > since:
            step = (now - since) * self._speed
            self._work += step
            self._delivered += step * len(self._running)
        self._then = now
        return self._delivered

    def settle(self) -> None:
        """Compute the speed for the present number of requests, and plan the end of the first one."""
        self._unsettled = False
        running = self._running
        number = len(running)
        self._speed = self._speeds.get(number) or self._speed_of(number)
        order = self._order
        while order and order[0][2] not in running:
            heappop(order)
        if not order:
            self._planned = inf
            return
        now = self._agenda.now
        due = max(now, self._stalled) + max(0.0, order[0][0] - self._work) / self._speed
        if due < self._planned or self._planned < now:  # an event that is too early is harmless: it plans again
            self._planned = due
            self._agenda.at(due, self._due)

    def _speed_of(self, number: int) -> float:
        speed = self._speeds[number] = self._law.speed(max(1, number), self._since)
        return speed

    def _due(self, _: None) -> None:
        now = self._agenda.now
        if now != self._planned:
            return  # another event has been planned since
        self._planned = inf
        self.delivered()
        order, running, reached = self._order, self._running, self._work + NEARLY
        while order and order[0][0] <= reached:
            attempt = heappop(order)[2]
            if running.pop(attempt, None) is not None:
                self._done(attempt)
        self._fill()

    def _fill(self) -> None:
        waiting, running = self._waiting, self._running
        while waiting and len(running) < self._places:
            attempt = next(iter(waiting))
            running[attempt] = self._work
            heappush(self._order, (self._work + waiting.pop(attempt), self._number(), attempt))
            if self._law.stall:
                self._stalled = max(self._stalled, self._agenda.now) + self._law.stall
        if not self._unsettled:
            self._unsettled = True
            self._agenda.unsettled.append(self)

    def _law_changes(self, when: float) -> None:
        self.delivered()
        self._law_since(when)
        self._planned = inf  # the planned end of the first request is no longer valid
        self._fill()

    def _law_since(self, when: float) -> None:
        self._since = when
        self._places = self._law.places(when)
        self._speeds: dict[int, float] = {}
        self._speed = self._speed_of(len(self._running))
