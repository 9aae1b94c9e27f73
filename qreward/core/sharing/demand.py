"""How much of its limits a source could use: what a member asks for at a renewal. Reads the source, and changes nothing of it."""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING

from qreward.core.sharing.words import LINGER, MINUTE, RENEW, Ask, Need
from qreward.core.task import Feed

if TYPE_CHECKING:
    from qreward.core.sharing.tenure import Tenure
    from qreward.core.source import Source
    from qreward.policies import Limits

AHEAD = 1.5
"""What is used is asked for again, and half as much, so that use may grow."""
SLOW = 2.0
"""What is in flight is surely over after so many times what the slowest percent of answers takes."""
IDLE = 2.0
"""Seconds without work after which a source wants nothing."""


class Demand:
    """What one source needs, from one renewal to the next.

    Attributes:
        hungry: at the last look, work waited that its share held up.
    """

    def __init__(self, source: Source, tenure: Tenure) -> None:
        self._source = source
        self._tenure = tenure
        self._sent = source.tally.sent
        self._at = -inf
        self._worked_at = -inf
        self.hungry = False

    def is_idle(self, now: float) -> bool:
        """Whether nothing is under way or waits, for a while now."""
        if self._source.inflight or self.waiting(now):
            self._worked_at = now
        return now - self._worked_at > IDLE

    def waiting(self, now: float) -> float:
        """Tasks that wait for it, inf if that is many; 0 if it could not take them anyhow."""
        source = self._source
        health = source.health
        if source.removed or health.down or source.gate.opens_at > now + RENEW or source.inflight >= health.allowed:
            return 0
        count = sum(len(pool.queue) for pool in source.pools)
        return inf if count >= Feed.LOW else count

    def ask(self, now: float, limits: Limits) -> Ask:
        """What it is to say now."""
        source, tenure = self._source, self._tenure
        seconds, self._at = min(MINUTE, max(now - self._at, RENEW / 2)), now
        used, self._sent = source.tally.sent - self._sent, source.tally.sent
        peak, tenure.window.peak = max(tenure.window.peak, source.inflight), source.inflight
        if used:
            self._worked_at = now
        waiting = self.waiting(now)
        room = max(0, source.window.limit - source.inflight) + ceil(AHEAD * used * RENEW / seconds)
        want = min(waiting, room) if waiting else min(room, ceil(AHEAD * used * RENEW / seconds)) if used else 0
        want += 1 if waiting or used else 0
        rate = inf if waiting else (AHEAD * used / seconds * MINUTE + 1 if used else 0.0)
        lapsed = tenure.lapse(now)
        ask = Ask()
        if limits.rpm is not None:
            ask.requests = tenure.requests.need(limits.rpm, lapsed=lapsed, want=want, rate=rate)
        if limits.tpm is not None and tenure.tokens is not None:
            mean = tenure.tokens.mean
            ask.tokens = tenure.tokens.need(limits.tpm, lapsed=lapsed, want=max(want * mean, tenure.tokens.least), rate=rate * mean)
        if limits.max_concurrency is not None:
            ask.permits = self._permits(limits.max_concurrency, waiting, peak, hold=0.0 if lapsed else tenure.permits)
        self.hungry = waiting > 0
        return ask

    def _permits(self, limit: int, waiting: float, peak: int, *, hold: float) -> Need:
        source, inner = self._source, self._tenure.window.inner
        could = source.inflight + waiting if waiting else peak + 1 + peak // 5 if peak else 0
        slow = source.latency.slow
        lasts = LINGER if slow is None else min(LINGER, SLOW * slow)
        return Need(limit, hold=hold, rate=min(inner.limit, could), using=source.inflight, lasts=lasts)
