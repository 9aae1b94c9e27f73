"""A source is one endpoint as the scheduler sees it: its limits, its health, its requests in flight, and what it has shown.

Only the scheduler changes this state. ``Source.ready_at`` combines all limits of a source into one time: the earliest time at which the
source may be sent a request. ``Source.answers_in`` and ``Source.finishes_in`` apply the estimate by which sources are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING, NamedTuple, cast

from qreward.quota.ledger import Lease
from qreward.results import ReasonCode
from qreward.scheduler.estimate import CAPACITY, LOAD, SourceService
from qreward.scheduler.health import Cooldown, Health
from qreward.scheduler.limits.concurrency import AdaptiveLimit, ConcurrencyLimit, ConfiguredLimit, Reject
from qreward.scheduler.limits.rate import Gcra, HeaderRateLimit, LearnedRate, MinuteLimit
from qreward.scheduler.outcome import Answer, LastFailure, RateLimitInfo
from qreward.scheduler.prefixes import PredictedCache
from qreward.scheduler.stats import LatencyStats, StallDetector, StreamTiming
from qreward.scheduler.task import MOST_DOUBLINGS, Attempt, Task
from qreward.settings.policies import Limits

if TYPE_CHECKING:
    from qreward.scheduler.pool import Pool

ATTEMPT_FIRST = 120.0
"""Maximum number of seconds that an attempt may take at a source whose latency is not known yet."""
ATTEMPT_LEAST = 10.0
"""Minimum number of seconds of a time limit that is learned from the latency."""
ATTEMPT_FACTOR = 8.0
"""Factor on the longer of two times: the 99th percentile of the source's latency, and the time in which the source generates an answer of
the pool's 99th percentile length. The product is the time limit of an attempt."""
SLOWER, MOST_SLOWER = 2.0, 60.0
"""``SLOWER``: factor on the longest time of an answer, or of an attempt that was cut, that a source has shown. The product is a lower
bound of the time limit, at most ``MOST_SLOWER`` seconds: a request is cut only against what the slow answers of its own source show."""
UNANSWERED = 5
"""Number of requests in a row that timed out without a sign of life, after which a source is not alive."""
SOON = 1.0
"""A source is *available soon* if it is expected to accept work within this number of seconds."""
HELD = 0.05
"""Share (0 to 1) of a stream's time. If a stream waited for its reader for more than this share, the answer does not affect the concurrency
limit."""


@dataclass(slots=True)
class SourceCounters:
    """Counts the requests of a source by outcome, and their tokens, since the source was created."""

    sent: int = 0
    ok: int = 0
    rejected: int = 0
    failed: int = 0
    server_errors: int = 0
    cancelled: int = 0
    retried: int = 0
    hedged: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Source:
    """A source holds the state of one endpoint: its limits, cooldown, health, latency and requests in flight.

    ``make_source`` creates a source that adapts its limits. Without ``window`` and ``learned``, only the configured limits apply, and
    ``limits.adaptive`` is ignored.
    """

    __slots__ = (
        "answered_at", "attempt_timeout", "attempts", "check_at", "cooldown", "counted_at", "down_since", "due", "endpoint", "fault",
        "health", "inflight", "inflight_seconds", "latency", "learned", "lease", "look_after", "metered", "name", "paused", "pools",
        "prefix_cache", "proven", "removed", "requests", "reserved", "sends_priority", "service", "silence", "stream_timing", "tally",
        "tokens", "unanswered", "weight", "window",
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
        self.endpoint: object = None  # opaque to the scheduler
        self.sends_priority = False  # its requests carry the level of their task
        self.pools: list[Pool] = []
        self.removed = False
        self.paused = ""  # why an operator has paused it; "" if it is not paused
        # limits
        self.window: ConcurrencyLimit = window or ConfiguredLimit(limits.max_concurrency)
        self.learned = learned  # a rate limit learned from rejected requests; None if only the configured limits apply
        self.requests: Gcra | HeaderRateLimit | None = MinuteLimit(limits.rpm) if limits.rpm else None
        self.tokens: Gcra | HeaderRateLimit | None = MinuteLimit(limits.tpm) if limits.tpm else None
        self.reserved = limits.tpm_counts == "reserved"
        self.metered = False  # its answers have carried rate limit headers
        self.lease: Lease | None = None  # the lease on limits that are shared with other processes
        self.cooldown = Cooldown(rng)
        self.attempt_timeout = attempt_timeout  # configured number of seconds that one attempt may take; None to learn this number
        # requests in flight
        self.attempts: dict[Attempt, None] = {}  # oldest first, including those being cancelled
        self.inflight = 0  # number of requests in flight
        self.inflight_seconds = self.counted_at = 0.0  # sum of the seconds for which requests were in flight, and the time of that sum
        self.look_after = ATTEMPT_LEAST  # age in seconds at which an attempt is inspected for the first time
        self.check_at = inf  # time of the next inspection of the attempts; inf while none is planned
        self.due = -1  # belongs to the timer wheel
        # observations
        self.tally = SourceCounters()
        self.latency = LatencyStats()
        self.service = SourceService()
        self.stream_timing: StreamTiming | None = None  # timing of its streams; None before the first token of its first stream
        self.silence = StallDetector()
        self.health = Health(rng)
        self.down_since: float | None = None  # when it was found to be out of service; None again when an answer shows that it is back
        self.answered_at = -inf  # when the latest answer came
        self.proven = -inf  # latest send time of a request that was answered
        self.unanswered = 0  # requests that timed out since the last sign of life
        self.fault: LastFailure | None = None  # its last failure other than overload
        self.prefix_cache = PredictedCache()

    def ready_at(self, now: float, slot: bool = False) -> float:
        """Return the earliest time at which this source may be sent a request; if ``slot``, once it has a free slot.

        If the time has passed, a request may be sent now. If the time is inf, an event must come first.
        """
        health = self.health
        if not slot and (self.inflight >= self.window.limit or (self.inflight and health.half_open)):
            return inf
        if health.marked_unhealthy or self.removed or self.paused:
            return inf
        at = max(health.open_until, self.cooldown.opens_at)
        if self.learned is not None and self.learned.rate != inf:
            at = max(at, self.learned.ready_at)
        if self.lease is not None and not self.lease.may_send(now):
            return inf
        if self.requests is not None:
            at = max(at, self.requests.ready_at)
        if self.tokens is not None:
            at = max(at, self.tokens.ready_at)
        return at

    def sent(self, now: float, attempt: Attempt) -> None:
        self.attempts[attempt] = None
        attempt.inflight_seconds = self.inflight_seconds = self.inflight_seconds + self.inflight * (now - self.counted_at)
        self.counted_at = now
        self.inflight += 1
        attempt.order = self.tally.sent = self.tally.sent + 1
        if attempt.order == 1 and attempt.task.size > 1:
            self.window.start_with(attempt.task.size)
        self.window.sent(now, self.inflight)
        self.silence.sent(now, self.inflight, self.inflight_seconds)
        if self.cooldown.pauses and self.cooldown.sent(now):
            self.window.cooled(now, self.inflight)
        if self.health.open_until != -inf:
            self.health.sent(now, self.tally.sent)
        if self.learned is not None:
            self.learned.sent(now)
        if self.requests is not None:
            self.requests.take(now)

    def ended(self, now: float, attempt: Attempt) -> None:
        del self.attempts[attempt]
        self.inflight_seconds += self.inflight * (now - self.counted_at)
        self.counted_at = now
        self.inflight -= 1

    def spent(self, now: float) -> float:
        """Return the sum of the seconds for which requests were in flight."""
        return self.inflight_seconds + self.inflight * (now - self.counted_at)

    def began(self, now: float, sent_at: float) -> None:
        """Record that the first token of a stream arrived."""
        if self.stream_timing is None:
            self.stream_timing = StreamTiming()
        self.stream_timing.began(now - sent_at)
        self.unanswered = 0
        if self.silence.since != inf:
            self.silence.begin(now, self.spent(now))

    def answered(self, now: float, attempt: Attempt, answer: Answer) -> None:
        """Record an answer, after ``ended`` was called for its attempt."""
        sent_at, held = attempt.sent_at, attempt.held
        taken = now - sent_at
        prompt, output = answer.prompt_tokens or 0, answer.output_tokens or 0
        self.answered_at, self.proven = now, max(self.proven, sent_at)
        self.unanswered = 0
        self.latency.add(taken - held)
        pool, work = attempt.task.pool, output or attempt.task.size or None
        for each in self.pools:
            each.answered_at, each.failing = now, 0
        if len(pool.sources) > 1:  # otherwise there is nothing to choose
            load = (self.inflight_seconds - attempt.inflight_seconds) / taken - 1.0 if taken > 0.0 else self.inflight
            pool.common.answered(now, self.service, taken - held, work, load, min(self.window.limit, CAPACITY))
        self.silence.broken(now, self.inflight, self.latency.mean, self.inflight_seconds)
        if held <= HELD * taken:
            self.window.ok(now, sent_at, work, self.inflight)
        if self.cooldown.pauses and self.cooldown.ok(sent_at):
            self.window.cooled(now, self.inflight)
        if self.learned is not None:
            self.learned.ok(now)
        if not self.health.clean:
            self.health.ok(now, sent_at)
        tally = self.tally
        tally.ok += 1
        tally.prompt_tokens += prompt
        tally.output_tokens += output
        tally.cached_tokens += answer.cached_tokens or 0
        if answer.limits is not None or self.metered:
            self.advertised(now, sent_at, answer.limits, used=prompt + output)

    def advertised(
        self, now: float, sent_at: float, limits: RateLimitInfo | None, used: int | None = None, hint: float | None = None
    ) -> None:
        """Update the rate limits that the server advertises, because a request ended or its streamed answer began.

        ``used``: tokens, None if it was not served. ``hint``: seconds after which a rejected request may be retried, as the server says.
        """
        if self.learned is None or (limits is None and not self.metered):  # limits are not adapted, or none was advertised
            return
        for unit, cost in (("requests", 1), ("tokens", used or 0)):
            limit, advertised = getattr(self, unit), None if limits is None else getattr(limits, unit)
            if advertised is not None and not isinstance(limit, HeaderRateLimit):
                limit, self.metered = HeaderRateLimit(limit), True
                setattr(self, unit, limit)
            if isinstance(limit, HeaderRateLimit):
                limit.update(now, sent_at, advertised, answered=used is not None, others=self.inflight * cost, hint=hint)

    def rejected(self, now: float, attempt: Attempt, hint: float | None) -> None:
        """Record that the source rejected a request because of overload, after ``ended`` was called."""
        sent_at = attempt.sent_at
        self.tally.rejected += 1
        for limit in (self.requests, self.tokens):
            if limit is not None:
                limit.rejected(now)
        meaning = self.window.rejected(now, sent_at, attempt.order, hint, self.inflight)
        if meaning is Reject.AWAY or self.cooldown.pauses:  # the test of a cooldown is never noise
            self.cooldown.rejected(now, sent_at, hint)
        if self.learned is not None:
            self.learned.rejected(sent_at)
            if hint is not None and meaning is not Reject.FULL:
                self.learned.hinted(now, hint, stray=meaning is Reject.STRAY or not self.inflight)

    def failed(self, now: float) -> None:
        """Record a failure that counts against the source."""
        self.service.failed(now)
        for pool in self.pools:
            pool.failed(now, self)

    def was_well(self, then: float, *, asked_now: bool) -> bool:
        """Return whether this source has answered a request since a task failed here, and was not out of service in between.

        If the task has now failed at another source (``asked_now`` is False), no later answer is needed, but one at any time.
        """
        health = self.health
        return self.tally.ok > 0 and then >= health.serving_since and (self.answered_at > then or (not asked_now and health.is_back))

    def is_alive(self) -> bool:
        return self.health.is_back and self.unanswered < UNANSWERED and not self.removed

    def available_soon(self, now: float) -> bool:
        """Return whether the source is expected to accept work within ``SOON`` seconds."""
        soon = now + SOON
        if not self.health.in_service or self.removed or self.paused or self.cooldown.opens_at >= soon:
            return False
        if self.lease is not None and not self.lease.is_valid(now):
            return False
        return not any(limit is not None and limit.ready_at > soon for limit in (self.requests, self.tokens))

    def rate(self, seconds: float | None = None) -> float:
        """Return the requests per second that the source can take if it needs ``seconds`` for an answer, by default its mean latency.

        This is its concurrency limit divided by the seconds, but at most its rate limits on requests.
        """
        return min(self.window.limit / max(self.latency.mean if seconds is None else seconds, 1e-6), self.rate_limit())

    def rate_limit(self) -> float:
        """Return the requests per second that its rate limits on requests allow; inf without one."""
        return min([limit.rate for limit in (self.requests, self.learned) if limit is not None], default=inf)

    def is_last(self) -> bool:
        """Return whether one of the source's pools has no other source in service."""
        return any(not any(other.health.in_service for other in pool.sources if other is not self) for pool in self.pools)

    def attempt_limit(self, overdue: int) -> float:
        """Return the seconds that an attempt may take if ``overdue`` attempts of its task have exceeded a time limit before."""
        if self.attempt_timeout is not None:
            return self.attempt_timeout
        slow = self.latency.p99
        if slow is None:
            return ATTEMPT_FIRST * 2.0 ** min(overdue, MOST_DOUBLINGS)
        rare = max((pool.common.lengths.p99 * self.service.recent() for pool in self.pools if pool.common.lengths.p99 < inf), default=0.0)
        longest = min(MOST_SLOWER, SLOWER * self.latency.longest)
        return max(ATTEMPT_LEAST, longest, ATTEMPT_FACTOR * max(slow, rare)) * 2.0 ** min(max(0, overdue - 1), MOST_DOUBLINGS)

    def answers_in(self, now: float, pool: Pool) -> float:
        """Return the seconds in which the source is expected to answer a typical task of a pool if it is sent now (see ``estimate``).

        The unit is unknown before the first answer in the pool.
        """
        return (1.0 + LOAD * self.inflight / min(self.window.limit, CAPACITY)) * pool.common.expected(now, self.service)

    def finishes_in(self, now: float, task: Task, most: float = inf) -> float:
        """Return the seconds in which the source is expected to answer a task that is sent now or waits for this source.

        The result is only a lower bound if that is already ``most`` or more.
        """
        burden = task.burden(self)
        if burden == inf or (self.inflight and self.health.half_open):  # the answer that it waits for may never come
            return inf
        pool = task.pool
        seconds = self.answers_in(now, pool) * burden
        if seconds >= most:
            return seconds
        cooldown, away = self.cooldown, 0.0
        if pool.is_alive():  # otherwise only tests can show which source is back first
            away = max(self.health.since, cooldown.began_at) - (cooldown.since if self.down_since is None else self.down_since)
        wait = max(0.0, away, self.ready_at(now, slot=True) - now)  # it is expected to stay away for as long as it has been away
        full = self.inflight >= self.window.limit
        if wait or full:  # other retries wait for it as well
            wait += pool.queue.again / self.rate(seconds / burden) + (seconds / burden / self.window.limit if full else 0.0)
        return wait + seconds

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
        lease = source.lease = Lease(limits, source.window)
        source.requests, source.tokens = lease.quotas.get("requests"), lease.quotas.get("tokens")
        source.window = cast("ConcurrencyLimit", lease.window)
    return source


class Availability(NamedTuple):
    """Says whether a source may be sent a request. If not, it also says what prevents that, and for how long."""

    reason: str  # what prevents it; ``ready`` if nothing does
    seconds: float  # seconds until it may be sent a request; inf if an event must come first
    code: ReasonCode


def standing(now: float, source: Source) -> Availability:
    """Return whether a source may be sent a request now. If several reasons prevent that, return the reason that lasts longest."""
    health, lease, asked = source.health, source.lease, source.cooldown.uncapped_hint
    capped = "" if asked is None else f"; it asked for {asked:.4g} s, which max_retry_after shortens"
    obstacles: list[tuple[float, str, ReasonCode]] = [
        (inf if source.removed else -inf, "removed", "removed"),
        (inf if health.marked_unhealthy else -inf, "marked unhealthy", "marked_unhealthy"),
        (inf if source.paused else -inf, source.paused, "paused"),
        (inf if lease is not None and not lease.is_valid(now) else -inf, "waiting for its share", "quota"),
        (health.open_until, "out of service after failures", "out_of_service"),
        (source.cooldown.opens_at, f"it turned requests away{capped}", "cooldown"),
    ]
    if source.learned is not None:
        obstacles.append((source.learned.ready_at, f"paced at {source.learned.rate:.3g} requests/s, learned from rejects", "rate_limit"))
    for limit, unit in ((source.requests, "requests"), (source.tokens, "tokens")):
        if limit is not None and limit.ready_at == inf:
            obstacles.append((inf, "waiting for its share", "quota"))
        elif limit is not None:
            words = f"no {unit} left, as it says itself" if limit.rate == inf else f"limit of {60 * limit.rate:.4g} {unit} a minute"
            obstacles.append((limit.ready_at, words, "rate_limit" if unit == "requests" else "token_limit"))
    at, reason, code = max(obstacles, key=itemgetter(0))
    if at > now:
        return Availability(reason, at - now, code)
    if source.inflight and health.half_open:
        return Availability("coming back: 1 at a time", inf, "recovering")
    if source.inflight >= source.window.limit:
        return Availability("window full", inf, "concurrency_limit")
    return Availability("ready", 0.0, "ready")
