"""The state of the scheduler: tasks and their attempts, batches, sources, and pools.

Only the scheduler changes this state. The engine keeps objects of its own in the fields named ``handle``. ``Source.ready_at`` combines all
limits of a source into one time: the earliest time at which the source may be sent a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import nsmallest
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from qreward.quota.lease import Lease
from qreward.scheduler.affinity import AffineQueue, Group
from qreward.scheduler.estimate import CAPACITY, CommonService, SourceService
from qreward.scheduler.health import Cooldown, Health
from qreward.scheduler.limits.concurrency import AdaptiveLimit, ConcurrencyLimit, FixedLimit
from qreward.scheduler.limits.headers import DOUBT, HeaderRateLimit
from qreward.scheduler.limits.rate import Gcra, LearnedRate
from qreward.scheduler.outcome import Answer, Failure, RateLimitInfo
from qreward.scheduler.prefixes import COLD, Expected, Holders, Prefix, PrefixCache
from qreward.scheduler.shared_blocks import Node
from qreward.scheduler.stats import LONG, AnswerLengths, LatencyStats, StallDetector, StreamTiming
from qreward.settings.policies import Limits

if TYPE_CHECKING:
    from qreward.errors import QRewardError
    from qreward.results import AttemptRecord
    from qreward.scheduler.load_balancing import Balancer
    from qreward.scheduler.queue import Queue


class TaskState(IntEnum):
    """The state of a task: new, queued for a source, waiting for its retry time, in flight, or ended."""

    NEW = 0
    QUEUED = 1
    WAITING = 2
    SENT = 3
    DONE = 4


class CancelReason(IntEnum):
    """The reason for which the scheduler cancels an attempt.

    The attempt exceeded its time limit, its task was abandoned or has failed, or another attempt of the task answered first.
    """

    OVERDUE = 1
    ABANDONED = 2
    BEATEN = 3


class RequestOptions(NamedTuple):
    """Options that apply to all tasks of one call."""

    level: int  # priority, 0 (most urgent) to 9
    timeout: float | None = None  # seconds that a task may take, or None; the time in the queue counts, except for items of batches
    hedge: bool = True  # a task may be sent to a second source while the first still works on it
    tenant: str | None = None  # name of the tenant for fair queueing, or None
    restarts: bool = False  # a streamed answer may be restarted from the beginning after parts of it were delivered
    streamed: bool = False  # the answers are streamed

    def task(self, payload: Any, pool: Pool, waiter: Any, index: int) -> Task:
        task = Task(payload, pool, self.level, self.timeout, waiter, index, self.tenant)
        task.hedge, task.restarts, task.streamed = self.hedge, self.restarts, self.streamed
        task.prefix = pool.prefix_of_task(payload)
        return task


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """A task is one logical request, which may need several attempts. See ``RequestOptions`` for the fields without a comment."""

    payload: Any  # the request content; opaque to the scheduler
    pool: Pool
    level: int
    timeout: float | None
    waiter: Any  # the waiter to which the engine delivers the outcome; opaque to the scheduler
    index: int  # position of the task within its ``waiter``
    tenant: str | None = None  # tenant of a task outside of batches; a batch item has the tenant of its feed
    feed: BatchFeed | None = None  # the batch from which the task was taken
    state: TaskState = TaskState.NEW
    queued: bool = False  # it is in the queue
    number: int = 0  # unique among the live tasks of a scheduler
    born: float = 0.0  # when it was submitted, or taken from its feed
    sent_at: float | None = None  # when it was first sent
    deadline: float = inf
    due: int = -1  # belongs to the timer wheel
    attempt: Attempt | None = None  # the older one of its attempts in flight
    copy: Attempt | None = None  # the younger one of its attempts in flight, at another source
    hedge: bool = True
    restarts: bool = False
    streamed: bool = False
    sends: int = 0  # how often it was sent
    copies: int = 0  # how many times it was sent as a copy of an attempt in flight
    tries: int = 0  # failed attempts that were charged to it
    overdue: int = 0  # how many of its attempts exceeded their time limit; a higher number raises the limit of the next attempt
    suspected: int = 0  # how often one of its attempts was suspected to hang
    failures: tuple[tuple[Source, float], ...] = ()  # (source, time) of each failure that the task itself may have caused
    unfit: tuple[Source, ...] = ()  # sources that can never serve it
    refusals: int = 0  # how many of them refused its content
    prefix: Prefix | None = None  # what its prompt begins with; None if unknown, so that prefix affinity does not apply
    # the next four belong to ``AffineQueue``:
    group: Group[Task] | None = None  # the group of tasks with the same prefix in which it waits
    unshared: Node[Task] | None = None  # the blocks of its prefix that no other task had when it last waited
    position: int = 0  # how many tasks were sorted into groups before it
    slack: int = 0  # how many younger tasks may be taken before it
    trail: list[AttemptRecord] | None = None  # one record for each attempt that failed, or that lost to another attempt
    last_error: QRewardError | None = None
    items: tuple[Task, ...] = ()  # the tasks that are merged into this task
    # the next three belong to the engine's instrumentation:
    serial: int = 0  # its number, once assigned
    end_reported: int = 0  # whether its end was reported
    span: Any = None

    def bind(self, now: float, source: Source) -> bool:  # noqa: ARG002 - for subclasses
        """Choose the payload just before the task is sent. Called while no attempt is in flight. Returns False if there is nothing to send.

        The payload of this class is fixed, so the method does nothing here. Subclasses override it.
        """
        return True

    def holds(self, attempt: Attempt) -> bool:
        """Return whether the attempt is a current attempt of this task, so that its answer counts."""
        return attempt is self.attempt or attempt is self.copy

    def other(self, attempt: Attempt) -> Attempt | None:
        return self.copy if attempt is self.attempt else self.attempt

    def burden(self, source: Source) -> float:
        """Return the factor on the expected tries at a source. Each failure of this task there doubles it, up to ``MOST_DOUBLINGS`` times.

        The factor is inf if the source cannot serve the task, or works on it already.
        """
        if source in self.unfit or (self.attempt is not None and self.attempt.source is source):
            return inf
        if not self.failures:
            return 1.0
        return 2.0 ** min([failed for failed, _ in self.failures].count(source), MOST_DOUBLINGS)

    def drop(self, attempt: Attempt) -> None:
        if attempt is self.attempt:
            self.attempt = self.copy
        self.copy = None


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """An attempt sends one task to one source."""

    task: Task
    source: Source
    sent_at: float
    overdue: int = 0  # how many attempts of its task had exceeded their time limit when it was sent
    number: int = 1  # its position among the task's attempts, counted from 1
    order: int = 0  # how many requests had been sent to the source, this one included
    hedge: bool = False  # it was sent while another attempt of the task was in flight
    cancel_reason: CancelReason | None = None  # why the scheduler cancelled it
    ended: bool = False  # its end was reported
    committed: bool = False  # its streamed answer is being delivered to the caller
    won: bool = False  # its answer is the task's answer
    held: float = 0.0  # seconds for which it waited for the caller to read
    holds_since: float | None = None  # when it began to wait, if it waits now
    inflight_seconds: float = 0.0  # ``Source.inflight_seconds`` when it was sent
    cost: float = 0.0  # tokens reserved for it
    cached: Expected = COLD  # what it was expected to find in the prefix cache of its source
    prompt: float = 0.0  # estimated tokens of the prompt, before scaling
    failure: Failure | None = None  # a failure that the scheduler determined itself: the attempt exceeded its time limit
    span: Any = None  # used by the engine's instrumentation
    handle: Any = None  # used by the engine, for example for an asyncio task

    def held_until(self, now: float) -> float:
        """Return the seconds up to ``now`` for which the attempt has waited for the caller to read."""
        return self.held if self.holds_since is None else self.held + now - self.holds_since


READ_AHEAD, LOW = 32, 8
"""``READ_AHEAD``: number of tasks that the buffer of a batch without prefix affinity should hold. ``LOW``: number of tasks in this buffer
below which more input is requested."""


@dataclass(slots=True, eq=False, repr=False)
class BatchFeed:
    """A feed supplies the tasks of one batch, which have one priority. The scheduler takes tasks from ``buffer``, and requests more tasks
    from the engine when few are left.

    Tasks in the buffer are input that was read ahead. They are not bound to a source, and their timeout has not started. The engine reads
    tasks into ``incoming`` without the engine's lock, and calls ``Scheduler.refill`` to hand them over.
    """

    pool: Pool
    level: int
    waiter: Any
    opened_at: float
    tenant: str | None = None
    timeout: float | None = None  # seconds that each of its tasks may take
    buffer: AffineQueue[Task] = field(default_factory=AffineQueue)
    incoming: list[Task] = field(default_factory=list)  # tasks that were read; belong to the engine until it hands them over
    queued: bool = False  # it is in the queue, that is, the buffer is not empty
    more_requested: bool = False  # more input was requested
    ended: bool = False  # all input was read
    left: int | None = None  # number of items that are still to be taken, or None if the size of the input is unknown
    served: float = field(init=False)  # when an item was last taken
    failing: Callable[[], QRewardError] | None = None
    """Function that makes an error, or None. The function is set while the pool cannot serve the batch, for example because no source has
    been alive for too long. Meanwhile, waiting items and items that are read from the input fail with an error that the function makes.
    While a task waits, an item that the engine reads may fail with such an error at once."""
    due: int = -1  # belongs to the timer wheel
    postponed: bool = False  # used by ``outages``
    read_ahead: int = READ_AHEAD  # number of tasks that the buffer should hold; a larger number if the tasks have prefixes

    def __post_init__(self) -> None:
        self.served = self.opened_at

    def read(self, task: Task) -> None:
        """Take a task that was read from the input. Called by the engine, without its lock."""
        self.incoming.append(task)
        if task.prefix is not None and self.read_ahead == READ_AHEAD:
            self.read_ahead = max(READ_AHEAD, self.pool.look_ahead)

    def ahead(self) -> int:
        """Return the number of tasks that were read and not taken. Without the engine's lock, the number is approximate."""
        return len(self.buffer) + len(self.incoming)

    def take_in(self) -> None:
        """Move the incoming tasks to the buffer. They are sorted into groups of equal prefixes now, not when a source takes a task."""
        if self.incoming:
            self.buffer.extend(self.incoming)
            self.incoming.clear()
        if self.read_ahead > READ_AHEAD and len(self.buffer) > 1:
            self.buffer.form_groups(self.pool.compared, self.pool.holders)


ATTEMPT_FIRST = 120.0
"""Maximum number of seconds that an attempt may take at a source whose latency is not known yet."""
ATTEMPT_LEAST = 10.0
"""Minimum number of seconds of a time limit that is learned from the latency."""
ATTEMPT_FACTOR = 8.0
"""Factor on the longer of two times: the 99th percentile of the source's latency, and the time in which the source generates an answer of
the pool's 99th percentile length. The product is the time limit of an attempt."""
MOST_DOUBLINGS = 3
"""Maximum number of times that the time limit of a task's attempts doubles. The limit doubles with each attempt that exceeds it. If the
latency of the source is known, the first such attempt does not double the limit. Also the maximum number of times that the failures of a
task at a source double the expected tries there."""
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
        "answered_at", "attempt_timeout", "attempts", "check_at", "cooldown", "counted_at", "down_since", "due", "handle", "health",
        "inflight", "inflight_seconds", "latency", "learned", "lease", "look_after", "metered", "name", "pools",
        "prefix_cache", "proven", "removed", "requests", "reserved", "service", "silence", "stream_timing", "tally", "tokens", "trouble",
        "unanswered", "weight", "window",
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
        self.handle: object = None
        self.pools: list[Pool] = []
        self.removed = False
        # limits
        self.window: ConcurrencyLimit = window or FixedLimit(limits.max_concurrency)
        self.learned = learned  # a rate limit learned from rejected requests; None if only the configured limits apply
        self.requests: Gcra | HeaderRateLimit | None = Gcra(limits.rpm / 60) if limits.rpm else None
        self.tokens: Gcra | HeaderRateLimit | None = Gcra(limits.tpm / 60) if limits.tpm else None
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
        self.health = Health(rng, self._service_changed)
        self.down_since: float | None = None  # when it was found to be out of service; None again when an answer shows that it is back
        self.answered_at = -inf  # when the latest answer came
        self.proven = -inf  # latest send time of a request that was answered
        self.unanswered = 0  # requests that timed out since the last sign of life
        self.trouble = ""  # message of its last failure other than overload
        self.prefix_cache = PrefixCache()

    def ready_at(self, now: float) -> float:
        """Return the earliest time at which this source may be sent a request.

        If the time has passed, a request may be sent now. If the time is inf, an event must come first.
        """
        if self.inflight >= self.window.limit or self.inflight >= self.health.half_open_limit:
            return inf
        return self.gate_at(now)

    def gate_at(self, now: float) -> float:
        """Return the earliest time at which the source may be sent a request, once it has a free slot."""
        health = self.health
        if health.marked_unhealthy or self.removed:
            return inf
        at = max(health.open_until, self.cooldown.opens_at)
        if self.learned is not None and self.learned.pace is not None:
            at = max(at, self.learned.pace.ready_at)
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
        self.window.sent(now, self.inflight)
        self.silence.sent(now, self.inflight)
        if self.cooldown.closed:
            self.cooldown.sent(now)
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

    def began(self, now: float, sent_at: float) -> None:
        """Record that the first token of a stream arrived."""
        if self.stream_timing is None:
            self.stream_timing = StreamTiming()
        self.stream_timing.began(now - sent_at)
        self.unanswered = 0
        if self.silence.since != inf:
            self.silence.since = now

    def answered(self, now: float, attempt: Attempt, answer: Answer) -> None:
        """Record an answer, after ``ended`` was called for its attempt."""
        sent_at, held = attempt.sent_at, attempt.held
        taken = now - sent_at
        self.answered_at, self.proven = now, max(self.proven, sent_at)
        self.unanswered = 0
        load = (self.inflight_seconds - attempt.inflight_seconds) / taken - 1.0 if taken > 0.0 else self.inflight
        self.latency.add(taken - held)
        pool = attempt.task.pool
        if len(pool.sources) > 1:  # otherwise there is nothing to choose
            pool.lengths.add(self.service.answered(now, pool.common, taken - held, answer.output_tokens, load, self.capacity()))
        self.silence.broken(now, self.inflight, self.latency.mean)
        if held <= HELD * taken:
            self.window.ok(now, sent_at, answer.output_tokens, self.inflight)
        self.cooldown.ok(sent_at)
        if self.learned is not None:
            self.learned.ok(now)
        if not self.health.clean:
            self.health.ok(now, sent_at, self.window.limit)
        tally = self.tally
        tally.ok += 1
        tally.prompt_tokens += answer.prompt_tokens or 0
        tally.output_tokens += answer.output_tokens or 0
        tally.cached_tokens += answer.cached_tokens or 0
        if answer.limits is not None or self.metered:
            self.advertised(now, sent_at, answer.limits, used=(answer.prompt_tokens or 0) + (answer.output_tokens or 0))

    def advertised(
        self, now: float, sent_at: float, limits: RateLimitInfo | None, used: int | None = None, hint: float | None = None
    ) -> None:
        """Update the rate limits that the server advertises, because a request ended or its streamed answer began.

        Args:
            now: seconds.
            sent_at: when the request was sent.
            limits: the advertised rate limits, or None if there were none.
            used: tokens, if the request was served; None if it was rejected or failed.
            hint: seconds after which a rejected request may be retried, as the server requests, or None.
        """
        if self.learned is None or (limits is None and not self.metered):  # limits are not adapted, or none was advertised
            return
        for unit, cost, doubt in (("requests", 1, 0.0), ("tokens", used or 0, DOUBT)):
            limit, advertised = getattr(self, unit), None if limits is None else getattr(limits, unit)
            if advertised is not None and not isinstance(limit, HeaderRateLimit):
                limit, self.metered = HeaderRateLimit(limit, doubt=doubt), True
                setattr(self, unit, limit)
            if isinstance(limit, HeaderRateLimit):
                limit.update(now, sent_at, advertised, answered=used is not None, others=self.inflight * cost, hint=hint)

    def rejected(self, now: float, sent_at: float, hint: float | None) -> None:
        """Record that the source rejected a request because of overload, after ``ended`` was called."""
        self.tally.rejected += 1
        away = self.window.rejected(now, sent_at, hint, self.inflight)
        if away or hint is not None:
            self.cooldown.rejected(now, sent_at, hint)
        if self.learned is not None:
            self.learned.refused(sent_at)
            if away and hint is not None:
                self.learned.hinted(now, hint)

    def _service_changed(self, by: int) -> None:
        for pool in self.pools:
            pool.in_service += by

    def was_well(self, then: float, *, asked_now: bool) -> bool:
        """Return whether this source served other tasks around the time ``then``, at which a task failed here.

        Returns True if the source has answered a request since then, and was not out of service in between. If ``asked_now`` is False, the
        task has now failed at another source. In that case no later answer is needed: this source need only have been in service since
        then.
        """
        health = self.health
        return then >= health.serving_since and (self.answered_at > then or (not asked_now and health.is_back))

    def is_alive(self) -> bool:
        return self.health.is_back and self.unanswered < UNANSWERED and not self.removed

    def available_soon(self, now: float) -> bool:
        """Return whether the source is expected to accept work within ``SOON`` seconds."""
        soon = now + SOON
        if not self.health.in_service or self.removed or self.cooldown.opens_at >= soon:
            return False
        if not self.metered:
            return True
        return not any(isinstance(limit, HeaderRateLimit) and limit.ready_at > soon for limit in (self.requests, self.tokens))

    def rate(self) -> float:
        """Return the answers per second that the source can give.

        This is its concurrency limit divided by its mean latency, but at most its rate limits on requests.
        """
        rates = [self.window.limit / max(self.latency.mean, 1e-6)]
        rates += [limit.rate for limit in (self.requests, self.learned) if limit is not None]
        return min(rates)

    def is_last(self) -> bool:
        """Return whether one of the source's pools has no other source in service."""
        return any(pool.in_service <= self.health.in_service for pool in self.pools)

    def attempt_limit(self, overdue: int) -> float:
        """Return the seconds that an attempt may take if ``overdue`` attempts of its task have exceeded a time limit before."""
        if self.attempt_timeout is not None:
            return self.attempt_timeout
        slow = self.latency.p99
        if slow is None:
            return ATTEMPT_FIRST * 2.0 ** min(overdue, MOST_DOUBLINGS)
        rare = max((pool.lengths.p99 * self.service.recent() for pool in self.pools if pool.lengths.p99 < inf), default=0.0)
        longest = min(MOST_SLOWER, SLOWER * self.latency.longest)
        return max(ATTEMPT_LEAST, longest, ATTEMPT_FACTOR * max(slow, rare)) * 2.0 ** min(max(0, overdue - 1), MOST_DOUBLINGS)

    def capacity(self) -> int:
        """Return the number of requests in flight at which the source is assumed to need twice as long for each."""
        return min(self.window.limit, CAPACITY)

    def answers_in(self, now: float, pool: Pool) -> float:
        """Return the seconds in which the source is expected to answer a typical task of a pool if it is sent now (see ``estimate``).

        The unit is unknown before the first answer in the pool.
        """
        load = 1.0 + self.inflight / min(self.window.limit, CAPACITY)
        return load * self.service.expected(now, pool.common) if pool.common.pace else load

    def finish(self, now: float, task: Task, most: float = inf) -> float:
        """Return the seconds in which the source is expected to answer a task that is sent now or waits for this source.

        The result is only a lower bound if that is already ``most`` or more.
        """
        burden = task.burden(self)
        if burden == inf:
            return inf
        pool = task.pool
        seconds = self.answers_in(now, pool) * burden
        if seconds >= most:
            return seconds
        wait = max(0.0, self.gate_at(now) - now)
        full = self.inflight >= self.window.limit or self.inflight >= self.health.half_open_limit
        if wait or full:  # other retries wait for it as well
            wait += pool.queue.again * self.interval(seconds / burden) + (seconds / burden / self.window.limit if full else 0.0)
        return wait + seconds

    def interval(self, seconds: float) -> float:
        """Return the seconds between two sends to the source, if it needs ``seconds`` for an answer and always has work."""
        rate = self.window.limit / seconds
        if self.requests is not None:
            rate = min(rate, self.requests.rate)
        if self.learned is not None:
            rate = min(rate, self.learned.rate)
        return 1.0 / max(rate, 1e-9)

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
        source.requests, source.tokens, source.window = lease.requests, lease.tokens, lease.window
    return source


class Availability(NamedTuple):
    """Says whether a source may be sent a request. If not, it also says what prevents that, and for how long."""

    reason: str  # what prevents it; ``ready`` if nothing does
    seconds: float  # seconds until it may be sent a request; inf if an event must come first


def standing(now: float, source: Source) -> Availability:
    """Return whether a source may be sent a request now. If several reasons prevent that, return the reason that lasts longest."""
    health = source.health
    if source.removed:
        return Availability("removed", inf)
    if health.marked_unhealthy:
        return Availability("marked unhealthy", inf)
    waits = [(at - now, reason) for at, reason in _obstacles(now, source) if at > now]
    if waits:
        seconds, reason = max(waits)
        return Availability(reason, seconds)
    if source.inflight >= health.half_open_limit:
        return Availability(f"coming back: {health.half_open_limit:g} at a time", inf)
    if source.inflight >= source.window.limit:
        return Availability("window full", inf)
    return Availability("ready", 0.0)


def _obstacles(now: float, source: Source) -> Iterator[tuple[float, str]]:
    if source.lease is not None and not source.lease.is_valid(now):
        yield inf, "waiting for its share"
    yield source.health.open_until, "out of service after failures"
    asked = source.cooldown.uncapped_hint
    capped = "" if asked is None else f"; it asked for {asked:.4g} s, which max_retry_after shortens"
    yield source.cooldown.opens_at, f"it turned requests away{capped}"
    if source.learned is not None:
        yield source.learned.ready_at, f"paced at {source.learned.rate:.3g} requests/s, learned from rejects"
    for limit, unit in ((source.requests, "requests"), (source.tokens, "tokens")):
        if limit is not None and limit.ready_at == inf:
            yield inf, "waiting for its share"
        elif limit is not None:
            yield limit.ready_at, f"no {unit} left, as it says itself" if limit.rate == inf else f"limit of {limit.rate:.3g} {unit}/s"


LOOK_AHEAD = 4096
"""Number of waiting tasks among which prefix affinity chooses. A larger number gains hardly anything (simulated)."""
MOST_COMPARED, RANKED_FOR = 4, 0.25
"""``MOST_COMPARED``: number of sources that are compared for a retry. In a larger pool, these are the best ones of a ranking that is made
again after ``RANKED_FOR`` seconds."""
UNSHARED, EACH = 256, 8
"""``UNSHARED``: number of consecutive prompts without a common beginning with other prompts, after which most prompts are no longer
compared. ``EACH``: from then on, one prompt in ``EACH`` is compared, until a prompt has a common beginning with another prompt."""


class Pool:
    """A pool is one route at run time. A source may be in several pools. The limits of a source apply to all of its pools together."""

    def __init__(self, name: str, sources: list[Source], balancer: Balancer, queue: Queue) -> None:
        self.name = name
        self.models: set[str] = set()  # the models that were routed to it; maintained by the fleet
        self.balancer = balancer
        self.queue = queue
        self.lengths = AnswerLengths()  # lengths of its answers
        self.common = CommonService()
        self.tail_guard = TailGuard()
        self.batch_inflight = 0  # started tasks that came from a batch and have not ended
        self.feeds: dict[BatchFeed, None] = {}  # the open batches
        self.holders: Holders[Source] = Holders()  # which of its sources hold which prefixes
        self.compared = 0  # number of oldest tasks of a batch or tenant among which a source chooses by prefix; 0 for a single source
        self.look_ahead = LOOK_AHEAD
        self.down_since = inf  # time since which no source is alive; inf while a source is alive, or no batch is open
        self.due = -1  # belongs to the timer wheel
        self.prefix_of: Callable[[Any, bool], Prefix | None] | None = None
        """Function that returns the prefix of a payload's prompt, or None if the prompt has no prefix. If its second argument is True, the
        function returns a prefix only if the caller has named a group. The attribute is None if there is no prefix affinity."""
        self._looked = 0  # counts payloads, up to ``EACH``
        self.sources: list[Source] = []
        self.in_service = 0  # number of its sources that are ``in_service``; see ``Health``
        self._ranked: list[Source] = []
        self._ranked_until = -inf
        self._alive: Source | None = None  # the source that was found alive last
        for source in sources:
            self.join(source)

    def prefix_of_task(self, payload: Any) -> Prefix | None:
        """Return the prefix of a task's prompt, or None if it is unknown or not needed. A pool of one endpoint needs no prefixes."""
        if not self.compared or self.prefix_of is None:
            return None
        self._looked = (self._looked + 1) % EACH
        return self.prefix_of(payload, self._looked > 0 and self.holders.unshared >= UNSHARED)

    def join(self, source: Source) -> None:
        self.sources.append(source)
        source.pools.append(self)
        self.in_service += source.health.in_service
        self.set_look_ahead(self.look_ahead)

    def leave(self, source: Source) -> None:
        self.sources.remove(source)
        source.pools.remove(self)
        self.in_service -= source.health.in_service
        self.balancer.forget(source)
        self._ranked_until = -inf
        self.set_look_ahead(self.look_ahead)

    def set_look_ahead(self, tasks: int) -> None:
        """Set the number of waiting tasks among which the sources choose by prefix affinity; 0 turns prefix affinity off."""
        self.look_ahead = tasks
        self.compared = tasks if len(self.sources) > 1 else 0

    def is_alive(self) -> bool:
        alive = self._alive
        if alive is None or self not in alive.pools or not alive.is_alive():
            alive = self._alive = next((source for source in self.sources if source.is_alive()), None)
        return alive is not None

    def best(self, now: float, task: Task, besides: Source | None = None) -> tuple[float, Source | None]:
        """Return the source that is expected to answer a task first, and the seconds in which it is. ``besides`` is left out."""
        best, found = inf, None
        for source in self._promising(now):
            if source is not besides and not source.removed and (seconds := source.finish(now, task, best)) < best:
                best, found = seconds, source
        return best, found

    def _promising(self, now: float) -> list[Source]:
        """Return the sources that are expected to answer first; all of them in a small pool."""
        if len(self.sources) <= MOST_COMPARED:
            return self.sources
        if now >= self._ranked_until:
            self._ranked_until = now + RANKED_FOR
            ranked = [
                (max(0.0, source.ready_at(now) - now) + source.answers_in(now, self), place) for place, source in enumerate(self.sources)
            ]
            self._ranked = [self.sources[place] for _, place in nsmallest(MOST_COMPARED, ranked)]
        return self._ranked

    def allows_batch(self, now: float, source: Source) -> bool:
        """Return whether a source may take batch items that were never sent."""
        return not (self.balancer.by_speed and self.tail_guard.holds_back(now, source, self))

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} {len(self.queue)} waiting, {self.sources}>"


MARGIN = 2.0
"""Factor on the time that the faster sources need for an item. A slower source is used if its own time for the item is at most the product.
With 1.3, half as many copies are made, but more capacity stays idle (simulated)."""
SWAY = 1.1
"""Factor by which the seconds per token of a source may rise between two evaluations of the pool before the source is held back."""
REFRESH, SHARE = 0.1, 0.1
"""``REFRESH``: least number of seconds between two evaluations of the pool. ``SHARE``: share (0 to 1) of the remaining time of the pool's
batches that passes between two evaluations."""
LONGEST = 5.0
"""Largest number of seconds between two evaluations of the pool."""


class TailGuard:
    """Keeps a slow source from taking one of the last items of a pool's batches if faster sources will finish that item sooner.

    The rule is earliest completion time, as in list scheduling for unequal machines (HEFT, Topcuoglu et al., IEEE TPDS 2002). The output
    length of an item is not known beforehand. The comparison assumes a long answer (see ``stats.LONG``), because long answers end last.
    """

    def __init__(self) -> None:
        self._look_at = -inf  # time of the next evaluation
        self._limit = inf  # largest seconds per token of a source that is used; inf if all sources are used

    def holds_back(self, now: float, source: Source, pool: Pool) -> bool:
        """Return whether the source should leave the remaining batch items to faster sources."""
        if now >= self._look_at:
            self._limit, drain = self._slowest(now, pool)
            self._look_at = now + max(REFRESH, min(SHARE * drain, LONGEST))
        return self._limit < inf and source.service.recent() > SWAY * self._limit

    @staticmethod
    def _slowest(now: float, pool: Pool) -> tuple[float, float]:
        """Compute which sources should take the remaining items, and how long these items will last.

        Returns:
            The first value is the largest number of seconds per token of a source that should be used. It is inf if all sources should be
            used, because many items are left or too little is known.
            The second value is the number of seconds until all items are taken.
        """
        left, lengths = pool.queue.left(), pool.lengths
        long = lengths.at(1 - LONG)
        if left == inf or not long:
            return inf, 0.0
        rates = [(source.service.recent(), source.rate()) for source in pool.sources if source.available_soon(now)]
        rate = 0.0
        quickest = slowest = limit = inf
        for pace, each in sorted((pace, each) for pace, each in rates if pace):
            if not rate:
                quickest = pace
            elif limit == inf and long * pace > MARGIN * (left / rate + long * quickest):
                limit = slowest
            slowest = pace
            rate += each
        return limit, left / rate if rate else 0.0
