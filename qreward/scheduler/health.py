"""When a source is left alone: out of service after failures (``Health``, a circuit breaker), cooling down after overload (``Cooldown``).

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
    """A source went out of service, or came back."""

    source: str  # name of the source
    reason: str  # why it is out of service; ``""`` if it is back
    seconds: float  # how long it was out of service; 0 if it has just left service


class Health:
    """Circuit breaker: in service, out of service until a time, or half-open.

    Args:
        rng: for jitter.
        changed: called with the changes (-1, 0 or 1) of ``in_service`` and of ``is_back`` whenever one of them changes.

    Attributes:
        is_back: in service, and more than one request may be in flight, so that the source is not just being probed.
        serving_since: when it first answered after it was last out of service, -inf if it never was. An earlier failure may have been
            part of the same outage.
    """

    def __init__(self, rng: Random, changed: Callable[[int, int], None] = lambda _in_service, _is_back: None) -> None:
        self._rng = rng
        self._changed = changed
        self.marked_unhealthy = False
        self.in_service = self.is_back = True  # the source is neither out of service after failures nor marked unhealthy by an operator
        self._openings = 0
        self._ejected = False  # it was ejected, and no answer has come since
        self.since = self.serving_since = -inf  # when the state last changed; requests sent earlier do not count
        self._close()

    def _close(self) -> None:
        self.open_until = -inf  # the source is out of service before this time; -inf while in service
        self.half_open_limit: float = inf  # requests that may be in flight while it is half-open; inf otherwise
        self._failing: set[int] = set()  # distinct tasks that failed since the last success
        self._recent: set[int] = set()  # distinct tasks that failed at all
        self._success, self.clean, self._stalled = 1.0, True, False

    def mark_unhealthy(self) -> None:
        """An operator has marked it unhealthy."""
        self.marked_unhealthy = True
        self._update()

    def _update(self) -> None:
        """Recompute the derived attributes. Call it after every change of ``down``, ``open_until`` or ``half_open_limit``."""
        in_service = not self.marked_unhealthy and self.open_until == -inf
        is_back = in_service and self.half_open_limit > 1
        if in_service is not self.in_service or is_back is not self.is_back:
            changes = in_service - self.in_service, is_back - self.is_back
            self.in_service, self.is_back = in_service, is_back
            self._changed(*changes)

    def sent(self, now: float) -> None:
        """A request was sent. The first one after ``open_until`` makes the breaker half-open."""
        if self.open_until != -inf and now >= self.open_until:
            self.open_until, self.half_open_limit, self.since, self._stalled = -inf, 1, now, False
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
        if self.half_open_limit == inf:
            if self._success == 1.0:
                self._recent.clear()
                self.clean = True
            return
        self.half_open_limit = self.half_open_limit + 1 if self.half_open_limit > 1 else max(2, limit // QUICK_START)
        if self.half_open_limit >= limit:
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
        self.clean = False  # there is no failure that later answers have not made up for, so an answer changes nothing
        self._failing.add(task)
        if len(self._recent) < _DISTINCT:  # bounded: only whether it reaches this size matters
            self._recent.add(task)
        self._success *= _MEMORY
        still_away = self.half_open_limit == 1
        dead = len(self._failing) >= IN_A_ROW
        sick = not last and self._success < SICK and len(self._recent) >= _DISTINCT
        if not (still_away or dead or sick):
            self.half_open_limit = max(1, self.half_open_limit - 1)
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
        self.open_until, self.half_open_limit, self.since, self.clean = now + seconds, 1, now, False
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
        if self.open_until == -inf and (self.half_open_limit != 1 or self.since > away_at):
            return False
        self.open_until, self.half_open_limit, self.since = now, 1, now
        self._update()
        return True

    def restore(self) -> None:
        """An operator has marked it healthy."""
        self.marked_unhealthy, self._openings = False, 0
        self._close()
        self._update()
        self.clean = not self._ejected


FIRST = 0.25
LONGEST = 3.2
"""Longest wait in seconds without a hint, before jitter of up to 1.5 times, so that sending resumes within 5 s of a source's return."""


class Cooldown:
    """Until when nothing is sent to a source that rejected requests: inactive, active until a time, or open for one probe.

    A hint (``Retry-After``) is obeyed exactly; ``failure_policy`` has already capped one that is too long. Without a hint the cooldown
    lasts 0.25 s, doubling while rejects continue. Afterwards one request is sent as a probe. The others follow when the probe was not
    rejected within a few times the usual delay of a reject. The concurrency limit decides which rejects start a cooldown and which only
    mean that the source is full.
    """

    def __init__(self, rng: Random) -> None:
        self.opens_at = -inf  # the time before which nothing may be sent
        self._rng = rng
        self.closed = 0  # cooldowns in a row without a successful probe; 0 while it is inactive
        self.uncapped_hint: float | None = None  # seconds for which the source asked to wait, if that was capped; else None
        self._closed_at = -inf
        self._hint_until = -inf  # the latest hint holds until then
        self._probe_at: float | None = None
        self._reject_after = 0.0  # seconds a reject takes, moving average

    def sent(self, now: float) -> None:
        """A request was sent. The first one after a cooldown is the probe; the next one ends the cooldown."""
        if self._probe_at is None:
            self._probe_at = now
            self.opens_at = now + max(FIRST, 3 * self._reject_after)
        else:
            self._open()

    def ok(self, sent_at: float) -> None:
        """An answer arrived."""
        if self._probe_at is not None and sent_at >= self._probe_at:
            self._open()

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        """A request was rejected. ``hint`` is the wait in seconds that the source requests, or None."""
        self._reject_after += 0.2 * (now - sent_at - self._reject_after)
        if sent_at >= self._closed_at:  # otherwise it was sent before this cooldown and adds no information
            self.closed = min(self.closed + 1, 8)
            self._closed_at = now
            self._probe_at = None
            pause = min(LONGEST, FIRST * 2.0 ** (self.closed - 1)) * self._rng.uniform(0.5, 1.5)
            self.opens_at = max(self.opens_at, now + pause)  # an earlier hint may be longer
        if hint is not None:
            self.opens_at, self._hint_until = max(self.opens_at, now + hint), max(self._hint_until, now + hint)
            self.closed, self._probe_at = max(1, self.closed), None  # a probe in flight was sent before this hint

    def hold(self, now: float, seconds: float) -> None:
        """Start a cooldown because a probe of the server reports that it is not ready. The first request afterwards is the probe."""
        self.opens_at = max(self.opens_at, now + seconds)
        self.closed, self._probe_at = max(1, self.closed), None

    def ease(self, now: float) -> bool:
        """End the cooldown because the server reports free capacity; a hint of the source still holds. True if that is earlier."""
        at = max(now, self._hint_until)
        if not self.closed or self._probe_at is not None or at >= self.opens_at:
            return False
        self.opens_at = at
        return True

    def _open(self) -> None:
        self.closed, self._probe_at, self.opens_at, self._hint_until = 0, None, -inf, -inf
