"""All that is known of one place that serves tasks: how many it may hold, when it may be asked, whether it is well.

Everything here is one predicate, ``ready_at``: not a layer of limiters, but numbers in one place.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

from qreward.core.adaptive import AdaptiveWindow
from qreward.core.advertised import DOUBT, Meter
from qreward.core.gate import Gate
from qreward.core.health import Health
from qreward.core.latency import Latency
from qreward.core.learned import LearnedPace
from qreward.core.outcome import Advertised, Answer
from qreward.core.pace import Pace
from qreward.core.sharing.tenure import Tenure
from qreward.core.silence import Silence
from qreward.core.tempo import Tempo
from qreward.core.window import FixedWindow, Window
from qreward.policies import Limits

if TYPE_CHECKING:
    from qreward.core.pool import Pool
    from qreward.core.task import Attempt

ATTEMPT_FIRST = 120.0
"""Seconds an attempt may take at a source that has not shown its speed yet."""
ATTEMPT_LEAST = 10.0
ATTEMPT_FACTOR = 8.0
"""An attempt may take this many times what the slowest percent of answers takes, here or, at this source's pace, anywhere."""

SOON = 1.0
"""Seconds within which a source must be expected to take work to be worth waiting for."""

HELD = 0.05
"""Share of an answer's time for which it may have waited for its caller and still say something of room."""
MOST_DOUBLINGS = 3
"""How often a task's limit doubles at most, from the second time on that it ran into one: no answer is too long four times."""


class Tally:
    """Counts since the source was made, by outcome."""

    __slots__ = ("cancelled", "failed", "hedged", "ok", "output_tokens", "prompt_tokens", "rejected", "retried", "sent")

    def __init__(self) -> None:
        self.sent = self.ok = self.rejected = self.failed = self.cancelled = self.retried = self.hedged = 0
        self.prompt_tokens = self.output_tokens = 0


class Source:
    """One endpoint, or one function.

    Attributes:
        attempts: what is under way, oldest first, including what is being stopped; ``inflight`` is their number, ``singles``
            that of those that do not belong to a bulk.
        look_after: seconds after which an attempt may be worth a look.
        down_since: when it was found to be out of service, until an answer shows that it is back; else None.
        check_at: when to look for attempts that take too long; inf while nothing is under way.
        tempo: of its streams, or None before the first.
        proven: when the latest request was sent that was answered.
        learned: a pace learned from rejects, or None if only what the operator set counts.
        attempt_timeout: seconds one attempt may take, set by an operator, or None if it is learned.
        share: what other processes leave of its limits, which are then kept by it; None if they are its own.
    """

    __slots__ = (
        "attempt_timeout", "attempts", "check_at", "down_since", "due", "gate", "handle", "health", "inflight", "latency", "learned",
        "look_after", "name", "pools", "proven", "removed", "requests", "reserved", "share", "silence", "singles", "tally", "tempo",
        "tokens", "weight", "window",
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
        self.requests: Pace | Meter | None = Pace(limits.rpm / 60) if limits.rpm else None
        self.tokens: Pace | Meter | None = Pace(limits.tpm / 60) if limits.tpm else None
        self.reserved = limits.tpm_counts == "reserved"
        self.share: Tenure | None = None
        self.gate = Gate(rng)
        self.health = Health(rng)
        self.down_since: float | None = None
        self.latency = Latency()
        self.silence = Silence()
        self.tempo: Tempo | None = None
        self.attempts: dict[Attempt, None] = {}
        self.inflight = self.singles = 0
        self.proven = -inf
        self.look_after = ATTEMPT_LEAST
        self.check_at = inf
        self.pools: list[Pool] = []
        self.due = -1
        self.removed = False
        self.tally = Tally()
        self.handle: object = None

    def ready_at(self, now: float) -> float:
        """The earliest time at which it may be sent a request: a past time means now, inf means after an event."""
        health = self.health
        limit = self.window.limit
        if self.inflight >= limit or self.inflight >= health.allowed or health.down or self.removed:
            return inf
        at = max(health.open_until, self.gate.opens_at)
        if self.learned is not None:
            at = max(at, self.learned.ready_at)
        if self.share is not None and not self.share.may_send(now):
            return inf
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
        self.silence.sent(now, self.inflight)
        if self.gate.closed:
            self.gate.sent(now)
        if self.health.open_until != -inf:
            self.health.sent(now)
        if self.learned is not None:
            self.learned.sent(now)
        if self.requests is not None:
            self.requests.take(now)

    def began(self, now: float, sent_at: float) -> None:
        """The first token of a stream came."""
        if self.tempo is None:
            self.tempo = Tempo()
        self.tempo.began(now - sent_at)
        if self.silence.since != inf:
            self.silence.since = now

    def answered(self, now: float, sent_at: float, answer: Answer, held: float = 0.0) -> None:
        """An answer came, ``held`` seconds later than it could have; ``inflight`` is already without it."""
        self.proven = max(self.proven, sent_at)
        self.latency.add(now - sent_at - held, answer.output_tokens)
        self.silence.broken(now, self.inflight, self.latency.mean)
        if held > HELD * (now - sent_at):
            self.window.ended()
        else:
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
        if answer.limits is not None:
            self.advertised(now, sent_at, answer.limits, used=(answer.prompt_tokens or 0) + (answer.output_tokens or 0))

    def advertised(self, now: float, sent_at: float, limits: Advertised, used: int | None = None) -> None:
        """An answer told of rate limits; ``used`` tokens if it was served, None if it was turned away."""
        if self.learned is None:  # what the operator set counts, and nothing else
            return
        served = used is not None
        if limits.requests is not None:
            if not isinstance(self.requests, Meter):
                self.requests = Meter(self.requests)
            self.requests.told(now, sent_at, limits.requests, answered=served, others=self.inflight)
        if limits.tokens is not None:
            if not isinstance(self.tokens, Meter):
                self.tokens = Meter(self.tokens, doubt=DOUBT)
            self.tokens.told(now, sent_at, limits.tokens, answered=served, others=self.inflight * (used or 0))

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
        soon = now + SOON
        if not self.health.in_service or self.removed or self.gate.opens_at >= soon:
            return False
        requests, tokens = self.requests, self.tokens
        used_up = (isinstance(requests, Meter) and requests.ready_at > soon) or (isinstance(tokens, Meter) and tokens.ready_at > soon)
        return not used_up

    def rate(self) -> float:
        """Answers a second that it can give, as far as is known: its window over the time of an answer, and its limits."""
        rate = self.window.limit / max(self.latency.mean, 1e-6)
        if self.requests is not None:
            rate = min(rate, self.requests.rate)
        if self.learned is not None and self.learned.rate is not None:
            rate = min(rate, self.learned.rate)
        return rate

    def is_last(self) -> bool:
        """True if one of its pools has too little else to do without it."""
        return not all(pool.has_other(self) for pool in self.pools)

    def attempt_limit(self, overdue: int) -> float:
        """Seconds an attempt may take of a task that has run into a limit so many times before."""
        if self.attempt_timeout is not None:
            return self.attempt_timeout
        slow = self.latency.slow
        if slow is None:
            return ATTEMPT_FIRST * 2.0 ** min(overdue, MOST_DOUBLINGS)
        rare = max((pool.lengths.rare * pool.lengths.pace(self.latency) for pool in self.pools if pool.lengths.rare < inf), default=0.0)
        return max(ATTEMPT_LEAST, ATTEMPT_FACTOR * max(slow, rare) * 2.0 ** min(max(0, overdue - 1), MOST_DOUBLINGS))

    def expected_finish(self) -> float:
        """Seconds in which it may be expected to answer: what it showed, more as its window fills; 0 if unknown."""
        return self.latency.mean * (1.0 + self.inflight / self.window.limit)

    def __repr__(self) -> str:
        return f"<Source {self.name!r} {self.inflight}/{self.window.limit} in flight>"


def make_source(name: str, rng: Random, limits: Limits, *, weight: float = 1.0, attempt_timeout: float | None = None) -> Source:
    """A source that finds out what it can take within ``limits``, or its share of them, unless they say that it should not."""
    window = AdaptiveWindow(rng, limits.max_concurrency) if limits.adaptive else None
    learned = LearnedPace() if limits.adaptive else None
    source = Source(name, rng, limits, weight=weight, attempt_timeout=attempt_timeout, window=window, learned=learned)
    if limits.shared != "none":
        share = source.share = Tenure(limits, source.window)
        source.requests, source.tokens, source.window = share.requests, share.tokens, share.window
    return source
