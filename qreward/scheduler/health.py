"""Whether a source is in service, from the failures it shows (overload is none, see ``gate``).

Closed -> open after five failures in a row of distinct tasks, or when most of the answers fail; open for 2 s x 2^k (at
most 5 s, jittered); then half-open: one real task, a quarter of the window when that is answered, and from there one more
for every answer, one less for every failure, until the whole window is in use again (slow start: it doubles each round).
Only the first one's failure opens it again at once, so that a source with ordinary faults comes back. One poison task
cannot open it: a task counts once, and which failures count at all is decided in ``aftermath``. A source that has gone
silent is open as well, until an answer proves that wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import NamedTuple

IN_A_ROW = 5
FIRST_OPEN = 2.0
LONGEST_OPEN = 5.0
"""A return must be noticed within seconds; Envoy's 300 s is for fleets that can do without. A probe costs one task one try."""
QUICK_START = 4
"""A probe that is answered opens this part of the window at once."""
SICK = 0.4
"""Share of successes under which a source does more harm than good."""
_MEMORY = 0.95  # weight an older outcome keeps in the success rate: about the last 20
_DISTINCT = 3


class HealthChange(NamedTuple):
    """A source has gone out of service, or is back.

    Attributes:
        source: its name.
        reason: why it is out of service; ``""`` if it is back.
        seconds: how long it was out of service; 0 if it has just gone.
    """

    source: str
    reason: str
    seconds: float


def _nobody(_in_service: int, _is_back: int) -> None:
    pass


class Health:
    """In service, out of service until a time, or coming back.

    Args:
        rng: for jitter.
        changed: is given the change (-1, 0 or 1) of ``in_service`` and of ``is_back`` whenever one of them changes.

    Attributes:
        in_service: it is neither out of service nor taken out: the source is worth waiting for.
        is_back: in service, and more than one request may be in flight, so that it is not just being tested.
        open_until: out of service before this time; -inf while in service.
        allowed: how many requests may be in flight while it comes back; inf when it is back.
        spotless: nothing has failed that is not made up for; an answer has nothing to change.
        since: when it last changed; older requests say nothing about the present.
        serving_since: when it first answered after it was last out of service, -inf if it never was. A failure before that may
            have been due to the same outage.
    """

    __slots__ = (
        "_changed", "_down", "_ejected", "_failing", "_openings", "_recent", "_rng", "_stalled", "_success", "allowed", "in_service",
        "is_back", "open_until", "serving_since", "since", "spotless",
    )  # fmt: skip

    def __init__(self, rng: Random, changed: Callable[[int, int], None] = _nobody) -> None:
        self._rng = rng
        self._changed = changed
        self._down = False
        self.in_service = self.is_back = True
        self._openings = 0
        self._ejected = False  # and no answer has come since
        self.since = self.serving_since = -inf
        self._close()

    def _close(self) -> None:
        self.open_until = -inf
        self.allowed: float = inf
        self._failing: set[int] = set()  # distinct tasks that failed since the last success
        self._recent: set[int] = set()  # distinct tasks that failed at all
        self._success, self.spotless, self._stalled = 1.0, True, False

    @property
    def down(self) -> bool:
        """An operator has taken it out of service."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        self._update()

    def _update(self) -> None:
        """To be called after every change of ``down``, ``open_until`` or ``allowed``."""
        in_service = not self._down and self.open_until == -inf
        is_back = in_service and self.allowed > 1
        if in_service is not self.in_service or is_back is not self.is_back:
            changes = in_service - self.in_service, is_back - self.is_back
            self.in_service, self.is_back = in_service, is_back
            self._changed(*changes)

    def sent(self, now: float) -> None:
        """A request was sent; the first one after the open time begins the way back."""
        if self.open_until != -inf and now >= self.open_until:
            self.open_until, self.allowed, self.since, self._stalled = -inf, 1, now, False
            self._update()

    def ok(self, now: float, sent_at: float, limit: int) -> None:
        """An answer came, under a window of ``limit``."""
        if self._stalled:
            self._close()
            self._update()
        elif self.open_until != -inf or sent_at < self.since:
            return
        if self._ejected:
            self._ejected, self.serving_since = False, now
        if self._failing:
            self._failing.clear()
        if self._success < 1.0:
            self._success = min(1.0, 1.0 - _MEMORY + _MEMORY * self._success + 1e-6)
        if self.allowed == inf:
            if self._success == 1.0:
                self._recent.clear()
                self.spotless = True
            return
        self.allowed = self.allowed + 1 if self.allowed > 1 else max(2, limit // QUICK_START)
        if self.allowed >= limit:
            self._openings = 0
            self._close()
        self._update()

    def failed(self, now: float, sent_at: float, task: int, *, last: bool) -> bool:
        """A task failed here. ``last``: the source's routes have too little else. True if it went out of service now.

        A last source is never ejected: while nothing at all succeeds it is only probed every two seconds.
        """
        if self.open_until != -inf or sent_at < self.since:
            return False
        self.spotless = False
        self._failing.add(task)
        if len(self._recent) < _DISTINCT:  # bounded: it is only asked whether there were so many
            self._recent.add(task)
        self._success *= _MEMORY
        still_away = self.allowed == 1
        dead = len(self._failing) >= IN_A_ROW
        sick = not last and self._success < SICK and len(self._recent) >= _DISTINCT
        if not (still_away or dead or sick):
            self.allowed = max(1, self.allowed - 1)
            self._update()
            return False
        seconds = FIRST_OPEN
        if not last:
            seconds = min(LONGEST_OPEN, FIRST_OPEN * 2.0**self._openings)
            self._openings = min(self._openings + 1, 8)
        self.eject(now, seconds * self._rng.uniform(0.5, 1.5))
        return True

    def eject(self, now: float, seconds: float) -> None:
        """Take it out of service for a time."""
        self._close()
        self.open_until, self.allowed, self.since, self.spotless = now + seconds, 1, now, False
        self._ejected = True
        self._update()

    def stall(self, now: float) -> None:
        """It has gone silent. An answer proves that wrong."""
        self.eject(now, FIRST_OPEN)
        self._stalled = True

    def try_now(self, now: float, away_at: float) -> bool:
        """It is said to be back, and to have been away at ``away_at``: it is tried at once, unless that has been done since.

        What was sent before tells nothing of it. True if it was not in service, or on its way back by a request sent before.
        """
        if self.open_until == -inf and (self.allowed != 1 or self.since > away_at):
            return False
        self.open_until, self.allowed, self.since = now, 1, now
        self._update()
        return True

    def restore(self) -> None:
        """An operator says it is well."""
        self._down, self._openings = False, 0
        self._close()
        self._update()
        self.spotless = not self._ejected
