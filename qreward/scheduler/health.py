"""The circuit breaker of a source: it decides from failures whether the source is in service. Overload is handled by ``cooldown``.

Closed -> open after five failures in a row of distinct tasks, or when most attempts fail. It stays open for 2 s x 2^k (at most 5 s, with
jitter). Then it is half-open: one real task is sent. When that is answered, a quarter of the concurrency limit opens, then one slot more
for every answer and one less for every failure, until the whole limit is in use again (slow start: it doubles each round). Only a failure
of the first task opens the breaker again at once, so that a source with ordinary faults can return.

One task that always fails cannot open the breaker: each task counts once, and ``failure_policy`` decides which failures count at all. A
stalled source is out of service too, until an answer shows that it works.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import NamedTuple

IN_A_ROW = 5
FIRST_OPEN = 2.0
LONGEST_OPEN = 5.0
"""Seconds. A return must be noticed within seconds; Envoy's 300 s suits fleets with spare capacity. A probe costs one task one attempt."""
QUICK_START = 4
"""An answered probe opens one part in this many of the concurrency limit at once."""
SICK = 0.4
"""Success rate below which the source is taken out of service."""
_MEMORY = 0.95  # weight an older outcome keeps in the success rate: about the last 20
_DISTINCT = 3


class HealthChange(NamedTuple):
    """A source went out of service, or came back.

    Attributes:
        source: name of the source.
        reason: why it is out of service; ``""`` if it is back.
        seconds: how long it was out of service; 0 if it has just left service.
    """

    source: str
    reason: str
    seconds: float


def _nobody(_in_service: int, _is_back: int) -> None:
    pass


class Health:
    """Circuit breaker: in service, out of service until a time, or half-open.

    Args:
        rng: for jitter.
        changed: called with the changes (-1, 0 or 1) of ``in_service`` and of ``is_back`` whenever one of them changes.

    Attributes:
        in_service: the source is neither out of service after failures nor marked unhealthy by an operator.
        is_back: in service, and more than one request may be in flight, so that the source is not just being probed.
        open_until: the source is out of service before this time; -inf while in service.
        allowed: requests that may be in flight while it is half-open; inf otherwise.
        clean: there is no failure that later answers have not made up for, so an answer changes nothing.
        since: when the state last changed; requests sent earlier do not count.
        serving_since: when it first answered after it was last out of service, -inf if it never was. An earlier failure may have been
            part of the same outage.
    """

    __slots__ = (
        "_changed",
        "_down",
        "_ejected",
        "_failing",
        "_openings",
        "_recent",
        "_rng",
        "_stalled",
        "_success",
        "allowed",
        "clean",
        "in_service",
        "is_back",
        "open_until",
        "serving_since",
        "since",
    )  # fmt: skip

    def __init__(self, rng: Random, changed: Callable[[int, int], None] = _nobody) -> None:
        self._rng = rng
        self._changed = changed
        self._down = False
        self.in_service = self.is_back = True
        self._openings = 0
        self._ejected = False  # it was ejected, and no answer has come since
        self.since = self.serving_since = -inf
        self._close()

    def _close(self) -> None:
        self.open_until = -inf
        self.allowed: float = inf
        self._failing: set[int] = set()  # distinct tasks that failed since the last success
        self._recent: set[int] = set()  # distinct tasks that failed at all
        self._success, self.clean, self._stalled = 1.0, True, False

    @property
    def down(self) -> bool:
        """An operator has marked it unhealthy."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        self._update()

    def _update(self) -> None:
        """Recompute the derived attributes. Call it after every change of ``down``, ``open_until`` or ``allowed``."""
        in_service = not self._down and self.open_until == -inf
        is_back = in_service and self.allowed > 1
        if in_service is not self.in_service or is_back is not self.is_back:
            changes = in_service - self.in_service, is_back - self.is_back
            self.in_service, self.is_back = in_service, is_back
            self._changed(*changes)

    def sent(self, now: float) -> None:
        """A request was sent. The first one after ``open_until`` makes the breaker half-open."""
        if self.open_until != -inf and now >= self.open_until:
            self.open_until, self.allowed, self.since, self._stalled = -inf, 1, now, False
            self._update()

    def ok(self, now: float, sent_at: float, limit: int) -> None:
        """An answer arrived, under a concurrency limit of ``limit``."""
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
                self.clean = True
            return
        self.allowed = self.allowed + 1 if self.allowed > 1 else max(2, limit // QUICK_START)
        if self.allowed >= limit:
            self._openings = 0
            self._close()
        self._update()

    def failed(self, now: float, sent_at: float, task: int, *, last: bool) -> bool:
        """A task failed at this source. True if the source went out of service now.

        An essential source is not taken out for a low success rate. While nothing at all succeeds it is probed every two seconds.

        Args:
            now: seconds.
            sent_at: when the request was sent.
            task: number of the task, to count each task once.
            last: the source is essential: its routes have too few other sources in service.
        """
        if self.open_until != -inf or sent_at < self.since:
            return False
        self.clean = False
        self._failing.add(task)
        if len(self._recent) < _DISTINCT:  # bounded: only whether it reaches this size matters
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
        """Take it out of service for ``seconds``."""
        self._close()
        self.open_until, self.allowed, self.since, self.clean = now + seconds, 1, now, False
        self._ejected = True
        self._update()

    def stall(self, now: float) -> None:
        """Take it out of service because it stalled. Any answer puts it back in service."""
        self.eject(now, FIRST_OPEN)
        self._stalled = True

    def try_now(self, now: float, away_at: float) -> bool:
        """A probe reports that it is back after it was away at ``away_at``: make it half-open at once, unless that was done since.

        Requests sent earlier no longer count. True if it was out of service, or half-open since before ``away_at``.
        """
        if self.open_until == -inf and (self.allowed != 1 or self.since > away_at):
            return False
        self.open_until, self.allowed, self.since = now, 1, now
        self._update()
        return True

    def restore(self) -> None:
        """An operator has marked it healthy."""
        self._down, self._openings = False, 0
        self._close()
        self._update()
        self.clean = not self._ejected
