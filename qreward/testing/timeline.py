"""When an endpoint works, how fast, and when it does not: its phases laid on a line of time.

Pure: seconds in, seconds out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from qreward.testing.spec import Phase

_ERRORS = ("dead", "error_503", "error_500")


class Window(NamedTuple):
    """A phase with its absolute times, in seconds."""

    start: float
    end: float
    phase: Phase


class Timeline:
    """The phases of one endpoint that started at ``origin``; all times are on the same clock as that.

    Example:
        >>> slow = Timeline((Phase(behaviour="slow", factor=8, start=1, end=2),))
        >>> slow.plan(0.5, 0.5625)
        (1.5, None)
    """

    def __init__(self, phases: tuple[Phase, ...], origin: float = 0.0) -> None:
        self._windows = [_window(phase, origin) for phase in phases if phase.after_requests is None]
        self._waiting = [phase for phase in phases if phase.after_requests is not None]

    def count(self, requests: int, now: float) -> bool:
        """Say that so many requests have come; True if that began to lay out a phase."""
        if not self._waiting:
            return False
        begun = [phase for phase in self._waiting if phase.after_requests is not None and requests >= phase.after_requests]
        self._waiting = [phase for phase in self._waiting if phase not in begun]
        self._windows.extend(_window(phase, now) for phase in begun)
        return bool(begun)

    def at(self, now: float) -> Phase | None:
        """The phase that rules at a time, None if all is well."""
        active = [window.phase for window in self._windows if window.start <= now < window.end]
        return next((phase for phase in active if phase.behaviour == "dead"), active[0] if active else None)

    def next_change(self, now: float) -> float:
        """The next time at which a phase begins or ends; infinite if there is none."""
        return min((time for window in self._windows for time in window[:2] if time > now), default=math.inf)

    def plan(self, now: float, service: float) -> tuple[float, str | None]:
        """When work of ``service`` seconds that begins now ends, and the error it ends in, if it does."""
        if not self._windows:
            return now + service, None
        while True:
            phase, until = self.at(now), self.next_change(now)
            if phase is not None and refuses(phase):
                return now, phase.behaviour
            speed = speed_in(phase)
            if speed and service <= (until - now) * speed:
                return now + service / speed, None
            if until == math.inf:
                return math.inf, None
            service -= (until - now) * speed
            now = until

    def opens(self, now: float) -> float:
        """When requests are admitted again: now, if they are."""
        while refuses(self.at(now)):
            now = self.next_change(now)
        return now

    def earliest(self, service: float) -> float:
        """When a request of ``service`` seconds can be done at the earliest, sent at the best time from 0 on."""
        start = 0.0
        while start < math.inf:
            end, error = self.plan(start, service)
            if error is None:
                return end
            start = self.opens(end)
        return math.inf

    def work(self, until: float) -> float:
        """Seconds of work that one slot can do from 0 up to a time."""
        return sum((end - start) * speed_in(phase) for start, end, phase in self._spans(until))

    def admissions(self, until: float, rate: float, burst: float) -> float:
        """Requests (or tokens) that a bucket, full at 0, admits up to a time; none while the endpoint refuses all.

        The bucket fills by ``rate`` a second up to ``burst``, also while nothing is admitted.
        """
        if until < 0:
            return 0.0
        admitted, level = 0.0, burst
        for start, end, phase in self._spans(until):
            filled = level + rate * (end - start)
            admitted, level = (admitted, min(burst, filled)) if refuses(phase) else (admitted + filled, 0.0)
        return admitted if refuses(self.at(until)) else admitted + level

    def _spans(self, until: float) -> Iterator[tuple[float, float, Phase | None]]:
        start = 0.0
        while start < until:
            end = min(until, self.next_change(start))
            yield start, end, self.at(start)
            start = end


def refuses(phase: Phase | None) -> bool:
    """Whether nothing is admitted, and nothing under way survives."""
    return phase is not None and phase.behaviour in _ERRORS


def speed_in(phase: Phase | None) -> float:
    """Work done in a second of this phase."""
    if phase is None:
        return 1.0
    return 1 / phase.factor if phase.behaviour == "slow" else 0.0


def _window(phase: Phase, origin: float) -> Window:
    end = math.inf if phase.end is None else origin + phase.end
    return Window(origin + phase.start, end, phase)
