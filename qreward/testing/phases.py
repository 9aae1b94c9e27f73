"""The timeline of an endpoint's phases. The code only computes: it uses no sockets and no clock."""

from __future__ import annotations

import math
from typing import NamedTuple

from qreward.testing.spec import Phase

_ERRORS = ("dead", "error_503", "error_500")


class TimeWindow(NamedTuple):
    """Holds a phase with its absolute start and end, in seconds."""

    start: float
    end: float
    phase: Phase


class Timeline:
    """Computes which phase of one endpoint is active at a time, and when work ends. Times are in seconds, on the clock of ``origin``."""

    def __init__(self, phases: tuple[Phase, ...], origin: float = 0.0) -> None:
        self._windows = [_window(phase, origin) for phase in phases if phase.after_requests is None]
        self._waiting = [phase for phase in phases if phase.after_requests is not None]

    def count(self, requests: int, now: float) -> bool:
        """Begin the phases whose ``after_requests`` is reached. Return True if a phase began."""
        if not self._waiting:
            return False
        begun = [phase for phase in self._waiting if phase.after_requests is not None and requests >= phase.after_requests]
        self._waiting = [phase for phase in self._waiting if phase not in begun]
        self._windows.extend(_window(phase, now) for phase in begun)
        return bool(begun)

    def at(self, now: float) -> Phase | None:
        """Return the phase that is active at the time ``now``; None in normal operation."""
        active = [window.phase for window in self._windows if window.start <= now < window.end]
        return next((phase for phase in active if phase.behaviour == "dead"), active[0] if active else None)

    def next_change(self, now: float) -> float:
        """Return the next time after ``now`` at which a phase begins or ends; infinite if there is no such time."""
        return min((time for window in self._windows for time in window[:2] if time > now), default=math.inf)

    def plan(self, now: float, service: float) -> tuple[float, str | None]:
        """Return the time at which work ends, and the error that ends the work early; None if the work is completed."""
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
        """Return the first time, not before ``now``, at which requests are admitted."""
        while refuses(self.at(now)):
            now = self.next_change(now)
        return now


def refuses(phase: Phase | None) -> bool:
    """Return whether the phase refuses new requests and ends the requests in flight."""
    return phase is not None and phase.behaviour in _ERRORS


def speed_in(phase: Phase | None) -> float:
    """Return the seconds of work that are done per second in this phase."""
    if phase is None:
        return 1.0
    return 1 / phase.factor if phase.behaviour == "slow" else 0.0


def _window(phase: Phase, origin: float) -> TimeWindow:
    end = math.inf if phase.end is None else origin + phase.end
    return TimeWindow(origin + phase.start, end, phase)
