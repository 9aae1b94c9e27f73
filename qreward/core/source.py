"""All that is known of one place that serves tasks: how many it may hold, when it may be asked, whether it is well.

Everything here is one predicate, ``ready_at``: not a layer of limiters, but numbers in one place.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

from qreward.core.adaptive import AdaptiveWindow
from qreward.core.gate import Gate
from qreward.core.health import Health
from qreward.core.latency import Latency
from qreward.core.learned import LearnedPace
from qreward.core.outcome import Answer
from qreward.core.pace import Pace
from qreward.core.window import FixedWindow, Window
from qreward.policies import Limits

if TYPE_CHECKING:
    from qreward.core.pool import Pool
    from qreward.core.task import Attempt

ATTEMPT_FIRST = 120.0
"""Seconds an attempt may take at a source that has not shown its speed yet."""
ATTEMPT_LEAST = 10.0
ATTEMPT_FACTOR = 6.0
"""An attempt may take this many times what the slowest percent of answers takes."""

MOST_DOUBLINGS = 3
"""A task's limit doubles with each attempt that ran into it, so often."""


class Tally:
    """Counts since the source was made, by outcome."""

    __slots__ = ("cancelled", "failed", "ok", "output_tokens", "prompt_tokens", "rejected", "retried", "sent")

    def __init__(self) -> None:
        self.sent = self.ok = self.rejected = self.failed = self.cancelled = self.retried = 0
        self.prompt_tokens = self.output_tokens = 0


class Source:
    """One endpoint, or one function.

    Attributes:
        attempts: what is under way, oldest first, including what is being stopped; ``inflight`` is their number.
        check_at: when to look for attempts past their limit; inf while nothing is under way.
        learned: a pace learned from rejects, or None if only what the operator set counts.
        attempt_timeout: seconds one attempt may take, set by an operator, or None if it is learned.
    """

    __slots__ = (
        "attempt_timeout", "attempts", "check_at", "due", "gate", "handle", "health", "inflight", "latency", "learned",
        "name", "pools", "removed", "requests", "reserved", "tally", "tokens", "weight", "window",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        rng: Random,
        limits: Limits | None = None,
        *,
        weight: float = 1.0,
        attempt_timeout: float | None = None,
        window: Window | None = None,
        learned: LearnedPace | None = None,
    ) -> None:
        limits = limits or Limits()
        self.name = name
        self.weight = weight
        self.attempt_timeout = attempt_timeout
        self.window: Window = window or FixedWindow(limits.max_concurrency)
        self.learned = learned
        self.requests = Pace(limits.rpm / 60) if limits.rpm else None
        self.tokens = Pace(limits.tpm / 60) if limits.tpm else None
        self.reserved = limits.tpm_counts == "reserved"
        self.gate = Gate(rng)
        self.health = Health(rng)
        self.latency = Latency()
        self.attempts: dict[Attempt, None] = {}
        self.inflight = 0
        self.check_at = inf
        self.pools: list[Pool] = []
        self.due = -1
        self.removed = False
        self.tally = Tally()
        self.handle: object = None

    def ready_at(self) -> float:
        """The earliest time at which it may be sent a request: a past time means now, inf means after an event."""
        health = self.health
        limit = self.window.limit
        if self.inflight >= limit or self.inflight >= health.allowed or health.down or self.removed:
            return inf
        at = max(health.open_until, self.gate.opens_at)
        if self.learned is not None:
            at = max(at, self.learned.ready_at)
        if self.requests is not None:
            at = max(at, self.requests.ready_at)
        if self.tokens is not None:
            at = max(at, self.tokens.ready_at)
        return at

    def sent(self, now: float, attempt: Attempt) -> None:
        """A request goes out."""
        self.attempts[attempt] = None
        self.inflight += 1
        self.tally.sent += 1
        self.window.sent(now, self.inflight)
        if self.gate.closed:
            self.gate.sent(now)
        if self.health.open_until != -inf:
            self.health.sent(now)
        if self.learned is not None:
            self.learned.sent(now)
        if self.requests is not None:
            self.requests.take(now)

    def answered(self, now: float, sent_at: float, answer: Answer) -> None:
        """An answer came; ``inflight`` is already without it."""
        self.latency.add(now - sent_at)
        self.window.ok(now, sent_at, answer.output_tokens, self.inflight)
        self.gate.ok(sent_at)
        if self.learned is not None:
            self.learned.ok(now)
        if not self.health.spotless:
            self.health.ok(sent_at, self.window.limit)
        tally = self.tally
        tally.ok += 1
        tally.prompt_tokens += answer.prompt_tokens or 0
        tally.output_tokens += answer.output_tokens or 0

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        """It said it has no room; ``inflight`` is already without that request."""
        self.tally.rejected += 1
        away = self.window.rejected(now, sent_at, hint, self.inflight)
        if away or hint is not None:
            self.gate.rejected(now, sent_at, hint)
        if self.learned is not None:
            self.learned.refused(sent_at)
            if away and hint is not None:
                self.learned.hinted(now, hint)

    def worth_waiting_for(self, now: float) -> bool:
        """True if it can be expected to take work within about a second."""
        return self.health.in_service and not self.removed and self.gate.opens_at < now + 1.0

    def attempt_limit(self, overdue: int) -> float:
        """Seconds an attempt may take, doubled for each time the task has already run into it."""
        if self.attempt_timeout is not None:
            return self.attempt_timeout
        slow = self.latency.slow
        return (ATTEMPT_FIRST if slow is None else max(ATTEMPT_LEAST, ATTEMPT_FACTOR * slow)) * 2.0 ** min(overdue, MOST_DOUBLINGS)

    def expected_finish(self) -> float:
        """Seconds in which it may be expected to answer: what it showed, more as its window fills; 0 if unknown."""
        return self.latency.mean * (1.0 + self.inflight / self.window.limit)

    def __repr__(self) -> str:
        return f"<Source {self.name!r} {self.inflight}/{self.window.limit} in flight>"


def make_source(name: str, rng: Random, limits: Limits, *, weight: float = 1.0, attempt_timeout: float | None = None) -> Source:
    """A source that finds out what it can take within ``limits``, unless they say that it should not."""
    window = AdaptiveWindow(rng, limits.max_concurrency) if limits.adaptive else None
    learned = LearnedPace() if limits.adaptive else None
    return Source(name, rng, limits, weight=weight, attempt_timeout=attempt_timeout, window=window, learned=learned)
