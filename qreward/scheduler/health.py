"""Decides when a source is sent no requests. ``Health`` is a circuit breaker for failures, and ``Cooldown`` is a pause after overload.

The breaker opens if so many of the last requests failed that the share of failures is credibly above one half (see ``CHANCE``), or at the
first sign of death, such as a refused connection. It stays open for 2 s, with jitter. Then it is half-open, and one task is sent. If that
task fails, the breaker opens again. If it is answered, the breaker is closed.

Each task counts once, so one task that always fails cannot open the breaker. ``failure_policy`` decides which failures count. A stalled
source is also out of service; any answer puts it back in service.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import NamedTuple

from qreward.scheduler.stats import LastFailures, least_failures

WINDOW, CHANCE = 20, 1 / 32
"""The breaker opens if, of the last n requests in the order in which they were sent, so many distinct tasks failed that a source whose
failure share is one half would do that with a probability of at most ``CHANCE`` (binomial test), for any n up to ``WINDOW``. That is five
of five, eight of nine, or fifteen of twenty."""
LEAST_FAILURES = least_failures(0.5, CHANCE, WINDOW)
OPEN = 2.0
"""Seconds for which the breaker is open, before jitter. A source must be used again within seconds of its recovery."""


class HealthChange(NamedTuple):
    """A source went out of service, or came back."""

    source: str  # name of the source
    reason: str  # why it is out of service, and when it is tried again; ``""`` if it is back
    seconds: float  # how long it was out of service; 0 if it has just left service


class Health:
    """A circuit breaker. ``rng`` is for jitter."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.marked_unhealthy = False
        self.in_service = True  # neither out of service after failures nor marked unhealthy by an operator
        self.is_back = True  # in service, and may have more than one request in flight
        self._failures = LastFailures()
        self._ejected = False  # the source was ejected, and no answer has come since
        self.since = -inf  # when the state last changed; requests sent earlier do not count
        self.serving_since = -inf  # when it first answered after it was out of service; earlier failures may belong to the outage
        self._reset()

    def _reset(self) -> None:
        self.open_until = -inf  # no request is sent before this time, and the first one after it is a test; -inf while in service
        self.half_open = False  # only one request may be in flight; also true while the source is out of service
        self._failures.clear()
        self.clean, self._stalled = True, False

    def mark_unhealthy(self) -> None:
        """Take the source out of service until ``restore``."""
        self.marked_unhealthy = True
        self._update()

    def _update(self) -> None:
        self.in_service = not self.marked_unhealthy and self.open_until == -inf
        self.is_back = self.in_service and not self.half_open

    def sent(self, now: float, order: int) -> None:
        """Record that the ``order``-th request was sent. The first request after ``open_until`` makes the breaker half-open."""
        if self.open_until != -inf and now >= self.open_until:
            self._failures.first = order - 1
            self.open_until, self.half_open, self.since, self._stalled = -inf, True, now, False
            self._update()

    def ok(self, now: float, sent_at: float) -> None:
        if not self._stalled and (self.open_until != -inf or sent_at < self.since):
            return
        if self._ejected:
            self._ejected, self.serving_since = False, now
        if self._stalled or self.half_open:
            self._reset()
            self._update()
        self.clean = True

    def failed(self, now: float, sent_at: float, order: int, task: int, *, dead: bool = False) -> bool:
        """Record that a task failed at this source. Returns True if this failure takes the source out of service.

        Requests count in the ``order`` in which they were sent. Of a sign of death (``dead``), one is enough.
        """
        if self.open_until != -inf or sent_at < self.since:
            return False
        if not (self._failures.add(order, task, LEAST_FAILURES) or dead or self.half_open):
            return False
        self.eject(now, OPEN * self._rng.uniform(0.5, 1.5))
        return True

    def eject(self, now: float, seconds: float) -> None:
        self._reset()
        self.open_until, self.half_open, self.since, self.clean = now + seconds, True, now, False
        self._ejected = True
        self._update()

    def stall(self, now: float) -> None:
        """Take the source out of service. Any answer puts it back in service, even an answer to an earlier request."""
        self.eject(now, OPEN)
        self._stalled = True

    def try_now(self, now: float, away_at: float) -> bool:
        """Allow one request now, because a probe reports "ready" that last reported something else at ``away_at``.

        Returns False, and does nothing, unless the source is out of service, or has been half-open for one request since before then.
        """
        if self.open_until == -inf and (not self.half_open or self.since > away_at):
            return False
        self.open_until, self.half_open, self.since = now, True, now
        self._update()
        return True

    def restore(self) -> None:
        self.marked_unhealthy = False
        self._reset()
        self._update()
        self.clean = not self._ejected


FIRST, LONGEST = 0.25, 1.6
"""Seconds of the first and of the longest cooldown without a hint, before jitter, which multiplies them by at most 1.5."""


class Cooldown:
    """Pauses a source after it rejected requests because of overload (``ConcurrencyLimit.rejected`` says which rejects).

    A hint (``Retry-After``) is obeyed exactly, after ``failure_policy`` has capped it. Without a hint a cooldown lasts 0.25 s, and twice as
    long each further time. Then one request is sent as a test. Further requests follow when it is answered, or when three times the usual
    delay of a reject have passed.
    """

    def __init__(self, rng: Random) -> None:
        self.opens_at = -inf  # time before which nothing may be sent
        self._rng = rng
        self.pauses = 0  # number of cooldowns in a row without an answer in between; 0 while no cooldown is active
        self.since = inf  # when the first of these cooldowns began; inf while none is active
        self.uncapped_hint: float | None = None  # the last hint in seconds if it was capped, else None
        self.began_at = -inf  # when the last cooldown started
        self._hint_until = -inf  # when the wait of the longest hint ends
        self._probe_at: float | None = None  # when the first request after the cooldown was sent
        self._reject_after = 0.0  # seconds until a request is rejected, moving average

    def sent(self, now: float) -> bool:
        """Record a request sent while ``pauses`` is not 0: the first is a test, the second ends the cooldown. Returns whether it ended."""
        if self._probe_at is None:
            self._probe_at = now
            self.opens_at = now + max(FIRST, 3 * self._reject_after)
            return False
        self._end()
        return True

    def ok(self, sent_at: float) -> bool:
        """Record an answer. Returns whether it ends the cooldown."""
        ends = self._probe_at is not None and sent_at >= self._probe_at
        if ends:
            self._end()
        return ends

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        self._reject_after += 0.2 * (now - sent_at - self._reject_after)
        if sent_at >= self.began_at:  # a request that was sent before this cooldown says nothing new
            self.pauses = min(self.pauses + 1, 8)
            self.began_at = now
            self._probe_at = None
            pause = min(LONGEST, FIRST * 2.0 ** (self.pauses - 1)) * self._rng.uniform(0.5, 1.5)
            self.opens_at = max(self.opens_at, now + pause)  # an earlier hint may be longer
        if hint is not None:
            self.opens_at, self._hint_until = max(self.opens_at, now + hint), max(self._hint_until, now + hint)
            self.pauses, self._probe_at = max(1, self.pauses), None  # a request in flight was sent before this hint
        if self.pauses:
            self.since = min(self.since, now)

    def hold(self, now: float, seconds: float) -> None:
        """Start a cooldown because a probe reports that the server is not ready."""
        self.opens_at = max(self.opens_at, now + seconds)
        self.pauses, self._probe_at, self.since = max(1, self.pauses), None, min(self.since, now)

    def ease(self, now: float) -> bool:
        """End the cooldown now, or when the wait of a hint ends. Returns True if that is earlier than before."""
        at = max(now, self._hint_until)
        if not self.pauses or self._probe_at is not None or at >= self.opens_at:
            return False
        self.opens_at = at
        return True

    def _end(self) -> None:
        self.pauses, self._probe_at, self.opens_at, self._hint_until, self.since = 0, None, -inf, -inf, inf
