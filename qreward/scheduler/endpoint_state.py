"""The state of one source: its limits, cooldown, health, latency and requests in flight.

``Source.ready_at`` combines all limits into one time, the earliest at which the source may be sent a request; limiters are not chained.
``standing`` describes the same state for people: whether the source is available, and if not, why and for how long.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from qreward.quota.lease import Lease
from qreward.scheduler.health import IN_A_ROW, Health
from qreward.scheduler.limits.adaptive import AdaptiveLimit
from qreward.scheduler.limits.cooldown import Cooldown
from qreward.scheduler.limits.headers import DOUBT, HeaderRateLimit
from qreward.scheduler.limits.rate import Gcra, LearnedRate
from qreward.scheduler.limits.window import ConcurrencyLimit, FixedLimit
from qreward.scheduler.outcome import Answer, RateLimitInfo
from qreward.scheduler.stats.latency import LatencyStats, StreamTiming
from qreward.scheduler.stats.stalls import StallDetector
from qreward.settings.policies import Limits

if TYPE_CHECKING:
    from qreward.scheduler.pool import Pool
    from qreward.scheduler.request import Attempt

ATTEMPT_FIRST = 120.0
"""Seconds an attempt may take at a source whose latency is not known yet."""
ATTEMPT_LEAST = 10.0
ATTEMPT_FACTOR = 8.0
"""An attempt may take this many times the 99th percentile of this source's latency, or this many times what an answer of the pool's
99th percentile length takes at this source, whichever is longer."""

SOON = 1.0
"""Seconds within which a source must be expected to accept work to count as available soon."""

HELD = 0.05
"""Share of an answer's time for which a slow reader may have held it up; beyond that the answer does not move the concurrency limit."""
MOST_DOUBLINGS = 3
"""How often a task's time limit doubles at most, from the second time on that the task exceeded one."""


class SourceCounters:
    """Counts of requests since the source was created, by outcome."""

    __slots__ = ("cancelled", "failed", "hedged", "ok", "output_tokens", "prompt_tokens", "rejected", "retried", "sent")

    def __init__(self) -> None:
        self.sent = self.ok = self.rejected = self.failed = self.cancelled = self.retried = self.hedged = 0
        self.prompt_tokens = self.output_tokens = 0


class Source:
    """One endpoint, or one function.

    Attributes:
        attempts: attempts in flight, oldest first, including those being cancelled. ``inflight`` is their number, ``singles`` the number
            of those that do not belong to a batch.
        look_after: age in seconds from which attempts are inspected.
        down_since: when the source was found to be out of service, until an answer shows that it is back; else None.
        check_at: when to inspect its attempts next; inf while none is in flight.
        tempo: timing of its streams, or None before the first one.
        answered_at: when the latest answer came.
        proven: when the most recently sent request that was answered had been sent.
        metered: its answers have carried rate limit headers.
        learned: a rate limit learned from rejected requests, or None if only the configured limits apply.
        attempt_timeout: seconds one attempt may take as configured, or None if that limit is learned.
        trouble: message of its last failure other than overload; empty before the first.
        unanswered: consecutive requests that timed out without a sign of life of the source in between.
        share: the lease on limits that are shared with other processes; None if the limits are not shared.
    """

    __slots__ = (
        "answered_at", "attempt_timeout", "attempts", "check_at", "down_since", "due", "gate", "handle", "health", "inflight",
        "latency", "learned", "look_after", "metered", "name", "pools", "proven", "removed", "requests", "reserved", "share",
        "silence", "singles", "tally", "tempo", "tokens", "trouble", "unanswered", "weight", "window",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        rng: Random,
        limits: Limits | None = None,
        *,
        weight: float = 1.0,
        attempt_timeout: float | None = None,
        window: ConcurrencyLimit | None = None,
        learned: LearnedRate | None = None,
    ) -> None:
        limits = limits or Limits()
        self.name = name
        self.weight = weight
        self.attempt_timeout = attempt_timeout
        self.window: ConcurrencyLimit = window or FixedLimit(limits.max_concurrency)
        self.learned = learned
        self.requests: Gcra | HeaderRateLimit | None = Gcra(limits.rpm / 60) if limits.rpm else None
        self.tokens: Gcra | HeaderRateLimit | None = Gcra(limits.tpm / 60) if limits.tpm else None
        self.metered = False
        self.reserved = limits.tpm_counts == "reserved"
        self.share: Lease | None = None
        self.gate = Cooldown(rng)
        self.health = Health(rng, self._health_changed)
        self.down_since: float | None = None
        self.latency = LatencyStats()
        self.silence = StallDetector()
        self.tempo: StreamTiming | None = None
        self.attempts: dict[Attempt, None] = {}
        self.inflight = self.singles = 0
        self.answered_at = self.proven = -inf
        self.unanswered = 0
        self.trouble = ""
        self.look_after = ATTEMPT_LEAST
        self.check_at = inf
        self.pools: list[Pool] = []
        self.due = -1
        self.removed = False
        self.tally = SourceCounters()
        self.handle: object = None

    def ready_at(self, now: float) -> float:
        """Return the earliest time at which it may be sent a request. A past time means now, inf means not before some event."""
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
        """A request is sent."""
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
        """The first token of a stream arrived."""
        if self.tempo is None:
            self.tempo = StreamTiming()
        self.tempo.began(now - sent_at)
        self.unanswered = 0
        if self.silence.since != inf:
            self.silence.since = now

    def answered(self, now: float, sent_at: float, answer: Answer, held: float = 0.0) -> None:
        """An answer arrived, ``held`` seconds of which it waited for its reader. ``inflight`` no longer counts it."""
        self.answered_at, self.proven = now, max(self.proven, sent_at)
        self.unanswered = 0
        self.latency.add(now - sent_at - held, answer.output_tokens)
        self.silence.broken(now, self.inflight, self.latency.mean)
        if held > HELD * (now - sent_at):
            self.window.ended()
        else:
            self.window.ok(now, sent_at, answer.output_tokens, self.inflight)
        self.gate.ok(sent_at)
        if self.learned is not None:
            self.learned.ok(now)
        if not self.health.clean:
            self.health.ok(now, sent_at, self.window.limit)
        tally = self.tally
        tally.ok += 1
        tally.prompt_tokens += answer.prompt_tokens or 0
        tally.output_tokens += answer.output_tokens or 0
        if answer.limits is not None or self.metered:
            self.advertised(now, sent_at, answer.limits, used=(answer.prompt_tokens or 0) + (answer.output_tokens or 0))

    def advertised(
        self, now: float, sent_at: float, limits: RateLimitInfo | None, used: int | None = None, hint: float | None = None
    ) -> None:
        """A request ended, or its streamed answer began. Update the rate limits that the server advertises.

        Args:
            now: seconds.
            sent_at: when the request was sent.
            limits: the advertised rate limits, or None if there were none.
            used: tokens, if the request was served; None if it was rejected or failed.
            hint: seconds after which a rejected request may be retried, as the server said.
        """
        if self.learned is None:  # only the configured limits apply
            return
        served = used is not None
        requests, tokens = (None, None) if limits is None else (limits.requests, limits.tokens)
        if requests is not None:
            if not isinstance(self.requests, HeaderRateLimit):
                self.requests, self.metered = HeaderRateLimit(self.requests), True
            self.requests.told(now, sent_at, requests, answered=served, others=self.inflight, hint=hint)
        elif isinstance(self.requests, HeaderRateLimit):
            self.requests.untold(now, sent_at, answered=served, hint=hint)
        if tokens is not None:
            if not isinstance(self.tokens, HeaderRateLimit):
                self.tokens, self.metered = HeaderRateLimit(self.tokens, doubt=DOUBT), True
            self.tokens.told(now, sent_at, tokens, answered=served, others=self.inflight * (used or 0), hint=hint)
        elif isinstance(self.tokens, HeaderRateLimit):
            self.tokens.untold(now, sent_at, answered=served, hint=hint)

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        """It rejected a request because of overload. ``inflight`` no longer counts that request."""
        self.tally.rejected += 1
        away = self.window.rejected(now, sent_at, hint, self.inflight)
        if away or hint is not None:
            self.gate.rejected(now, sent_at, hint)
        if self.learned is not None:
            self.learned.refused(sent_at)
            if away and hint is not None:
                self.learned.hinted(now, hint)

    def _health_changed(self, in_service: int, is_back: int) -> None:
        for pool in self.pools:
            pool.in_service += in_service
            pool.back += is_back

    def was_well(self, then: float, *, asked_now: bool) -> bool:
        """Return whether it served other tasks around the time ``then`` at which a task failed here.

        It did if it has answered since, without having been out of service in between. Where the task has now failed at another source
        (``asked_now`` is False), it is enough that this source is still in service.
        """
        health = self.health
        if then < health.serving_since:
            return False
        return self.answered_at > then or (not asked_now and health.is_back)

    def is_alive(self) -> bool:
        """Return False if it is known not to answer: it is out of service, half-open or removed, or shows no sign of life."""
        return self.health.is_back and self.unanswered < IN_A_ROW and not self.removed

    def available_soon(self, now: float) -> bool:
        """Return whether it is expected to accept work within about a second."""
        soon = now + SOON
        if not self.health.in_service or self.removed or self.gate.opens_at >= soon:
            return False
        requests, tokens = self.requests, self.tokens
        used_up = (isinstance(requests, HeaderRateLimit) and requests.ready_at > soon) or (
            isinstance(tokens, HeaderRateLimit) and tokens.ready_at > soon
        )
        return not used_up

    def rate(self) -> float:
        """Return the answers per second it can give: its concurrency limit over the mean latency, capped by its rate limits."""
        rate = self.window.limit / max(self.latency.mean, 1e-6)
        if self.requests is not None:
            rate = min(rate, self.requests.rate)
        if self.learned is not None and self.learned.rate is not None:
            rate = min(rate, self.learned.rate)
        return rate

    def is_essential(self) -> bool:
        """Return whether one of its pools has too few other sources in service to do without it."""
        return not all(pool.has_other(self) for pool in self.pools)

    def attempt_limit(self, overdue: int) -> float:
        """Return the seconds an attempt may take, for a task that exceeded a time limit ``overdue`` times before."""
        if self.attempt_timeout is not None:
            return self.attempt_timeout
        slow = self.latency.slow
        if slow is None:
            return ATTEMPT_FIRST * 2.0 ** min(overdue, MOST_DOUBLINGS)
        rare = max((pool.lengths.rare * pool.lengths.pace(self.latency) for pool in self.pools if pool.lengths.rare < inf), default=0.0)
        return max(ATTEMPT_LEAST, ATTEMPT_FACTOR * max(slow, rare) * 2.0 ** min(max(0, overdue - 1), MOST_DOUBLINGS))

    def expected_finish(self) -> float:
        """Return the seconds in which it is expected to answer: the mean latency, growing with its load; 0 if unknown."""
        return self.latency.mean * (1.0 + self.inflight / self.window.limit)

    def __repr__(self) -> str:
        return f"<Source {self.name!r} {self.inflight}/{self.window.limit} in flight>"


def make_source(name: str, rng: Random, limits: Limits, *, weight: float = 1.0, attempt_timeout: float | None = None) -> Source:
    """Create a source that adapts to its endpoint's capacity within ``limits``, unless ``limits.adaptive`` is off.

    Limits that are shared with other processes are leased.
    """
    window = AdaptiveLimit(rng, limits.max_concurrency) if limits.adaptive else None
    learned = LearnedRate() if limits.adaptive else None
    source = Source(name, rng, limits, weight=weight, attempt_timeout=attempt_timeout, window=window, learned=learned)
    if limits.shared != "none":
        share = source.share = Lease(limits, source.window)
        source.requests, source.tokens, source.window = share.requests, share.tokens, share.window
    return source


class Availability(NamedTuple):
    """Whether a source may be sent a request, and why not.

    Attributes:
        reason: a short description of the obstacle; ``ready`` if there is none.
        seconds: for how long it is sent nothing; 0 if it may be sent a request now, inf if that depends on an event.
    """

    reason: str
    seconds: float


def standing(now: float, source: Source) -> Availability:
    """Return whether a source may be sent a request now; if not, the obstacle that lasts longest."""
    health = source.health
    if source.removed:
        return Availability("removed", inf)
    if health.down:
        return Availability("marked unhealthy", inf)
    waits = [(at - now, reason) for at, reason in _times(source) if at > now]
    if waits:
        seconds, reason = max(waits)
        return Availability(reason, seconds)
    if source.inflight >= health.allowed:
        return Availability(f"coming back: {health.allowed:g} at a time", inf)
    if source.inflight >= source.window.limit:
        return Availability("window full", inf)
    return Availability("ready", 0.0)


def _times(source: Source) -> list[tuple[float, str]]:
    turned_away = "it turned requests away"
    if source.gate.uncapped_hint is not None:
        turned_away += f"; it asked for {source.gate.uncapped_hint:.4g} s, which max_retry_after shortens"
    times = [(source.health.open_until, "out of service after failures"), (source.gate.opens_at, turned_away)]
    if source.learned is not None and source.learned.rate is not None:
        times.append((source.learned.ready_at, f"paced at {source.learned.rate:.3g} requests/s, learned from rejects"))
    for pace, unit in ((source.requests, "requests"), (source.tokens, "tokens")):
        if pace is not None:
            times.append((pace.ready_at, _limit(pace, unit)))
    return times


def _limit(pace: Gcra | HeaderRateLimit, unit: str) -> str:
    if pace.ready_at == inf:
        return "waiting for its share"
    return f"no {unit} left, as it says itself" if pace.rate == inf else f"limit of {pace.rate:.3g} {unit}/s"


def why_window(source: Source) -> str:
    """Return why the concurrency limit of a source has its present value."""
    return str(getattr(source.window, "reason", "fixed"))
