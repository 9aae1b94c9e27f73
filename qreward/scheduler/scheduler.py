"""The scheduler of requests to endpoints. A *source* is one endpoint, and a *pool* is one route. Each pool has one queue of tasks. A source
with free capacity takes tasks from the queues of its pools.

The scheduler is pure: each input carries the time ``now``, and the resulting commands are appended to ``out``. It does no I/O and reads no
clock. A command is a tuple:

``(SEND, attempt)``          start the attempt, and report its end by exactly one ``event``;
``(CANCEL, attempt)``        stop the attempt, and report ``CANCELLED`` once its connection is closed;
``(FINISH, task, outcome, source, seconds)``
                             deliver to the caller an error, or an ``Answer`` with its source and the seconds that its attempt took;
``(MORE, feed)``             read more input into ``feed.incoming``, then call ``refill``.

Rules that hold between any two calls:
1. work conservation: while a task waits, no source that may serve it has free capacity (but see ``Pool.patience``, ``should_take``);
2. a source gets no request before ``ready_at``, or while it has as many requests in flight as its concurrency limit allows;
3. every task submitted or taken from a batch gets exactly one FINISH, unless it is withdrawn or has nothing to send (``Task.bind``);
4. every SEND is followed by exactly one event; later events for the same attempt are ignored.

Other modules decide parts: ``failure_policy`` what follows from a failure, ``source`` when a source may be sent a request and when it is
expected to answer, ``hedging`` which requests are sent twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil, inf
from random import Random
from typing import Any, Final

from qreward.errors import InvalidResponse, QRewardError
from qreward.records import is_retry
from qreward.scheduler.failure_policy import FailurePolicy, RetryDecision, is_sign_of_life, record_attempt, unanswered
from qreward.scheduler.health import HealthChange
from qreward.scheduler.hedging import HedgingPolicy, Overdue, stalls_at
from qreward.scheduler.limits.rate import TokenEstimator
from qreward.scheduler.outcome import Answer, Cancelled, Failure, FailureKind, Outcome, RateLimitInfo, described
from qreward.scheduler.pool import Balancer, OutageTracker, Pool, deadline
from qreward.scheduler.source import Source
from qreward.scheduler.stats import LEAST_SENT
from qreward.scheduler.task import LOW, READ_AHEAD, Attempt, BatchFeed, CancelReason, Task, TaskState
from qreward.scheduler.timer_wheel import PER_SECOND, Timed, TimerWheel
from qreward.scheduler.why import outage_error_factory, queue_full_error, timeout_error, too_late_error, unservable_error, unsuitable_error
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Hedge, Retry

SEND: Final = 0
CANCEL: Final = 1
FINISH: Final = 2
MORE: Final = 3
Command = tuple[Any, ...]

LOOK_LATER = 0.25
"""Seconds after which a pool with idle sources, and attempts that no source had the capacity to copy, are checked again."""
LOOK_PAUSED = 1.0
"""Seconds after which it is checked again whether the items of a batch fail in an outage, while all its sources are paused. Only a request
can end an outage."""
STALLED = 0.1
"""Maximum number of seconds by which a tick may be late. A later tick means that the event loop was blocked, and that answers may be
unread. Checks of attempts and sources are then postponed by this many seconds."""
LOOK_ANEW = 32
"""Number of answers of a source after which the scheduler recomputes the age at which it inspects the attempts at this source."""


class Scheduler:
    """Decides which request is sent to which source and when. Inputs are method calls; the resulting commands are in ``out``.

    Args:
        retry: the retry policy.
        rng: the only source of randomness.
        estimate: function that returns (prompt tokens, maximum output tokens) of a payload. It is called only for sources with a token
            limit.
        hedge: settings that say when a request is also sent to a second source. With None, that never happens.
        most_waiting: maximum number of tasks outside of batches that may wait in a pool. A further task ends with ``QueueFull``. None means
            no limit.
    """

    def __init__(
        self,
        retry: Retry,
        rng: Random,
        estimate: Callable[[Any], tuple[float, float]] | None = None,
        hedge: Hedge | None = None,
        most_waiting: int | None = None,
    ) -> None:
        self.rng = rng  # also of the sources that the fleet makes
        self.out: list[Command] = []  # the commands of the last input
        self.health_changes: list[HealthChange] = []  # sources that went out of service or came back, until the engine takes them
        self.wheel = TimerWheel()  # timers of tasks, sources, pools and feeds
        self.next_wake = self.wheel.next_wake  # when ``tick`` must be called next
        self.tokens = TokenEstimator(estimate)
        self._failure_policy = FailurePolicy(retry, rng)
        self._hedging = HedgingPolicy(hedge, retry.attempts)
        self.outages = OutageTracker(self.wheel)
        self._most_waiting = inf if most_waiting is None else most_waiting
        self._numbers = 0
        self._stalled = False  # the last tick was late

    # inputs: work

    def submit(self, now: float, task: Task) -> None:
        """Accept a task that is not part of a batch. It is sent at once if a source has capacity."""
        pool = task.pool
        pool.renewals += pool.answered_at > pool.submitted_at
        pool.submitted_at = now
        self._start(now, task)
        self._place(now, task)

    def open(self, now: float, feed: BatchFeed) -> None:
        """Accept a batch, with the tasks that were read already. If there are none, a ``MORE`` command requests them, unless the waiter
        reads by itself (``more_requested``)."""
        feed.pool.compare_at = -inf  # more items are left than at the last evaluation
        if feed.incoming:
            self.outages.enter(now, feed)
            self.refill(now, feed)
        else:
            self.attend(now, feed)
            self._ask(feed)

    def attend(self, now: float, feed: BatchFeed) -> None:
        """Watch a batch until ``close_feed``: its waiting items fail if no source is alive for the timeout of an item."""
        self.outages.enter(now, feed)
        self.outages.check(now, feed.pool)

    def refill(self, now: float, feed: BatchFeed, again: Sequence[Task] = ()) -> None:
        """Take over the tasks that the engine has read into a feed, or that it has ended. The tasks ``again`` go before all others."""
        feed.more_requested = False
        feed.take_in()
        for task in reversed(again):
            feed.buffer.appendleft(task)
        if feed.left is not None:
            feed.left += len(again)
        if feed.make_error is not None:
            self._fail_waiting(feed, feed.make_error)
        if feed.buffer:
            feed.pool.queue.put_feed(feed)
            self._check_outage(now, feed.pool)
            self.pump(now, feed.pool)
        if feed.make_error is not None:
            self._ask(feed)

    def close_feed(self, feed: BatchFeed) -> list[Task]:
        """End a batch. Returns the tasks that were read ahead and never sent."""
        feed.ended = True
        self.outages.leave(feed)
        feed.pool.queue.drop_feed(feed)
        if not (feed.buffer or feed.incoming):
            return []
        rest = [*feed.buffer, *feed.incoming]
        feed.buffer.clear()
        feed.incoming.clear()
        return rest

    def withdraw(self, _now: float, tasks: Iterable[Task]) -> None:
        """Drop tasks that the caller has abandoned. The attempts of these tasks are cancelled, and no FINISH follows."""
        for task in tasks:
            if task.state is not TaskState.DONE:
                self._end(task)

    # inputs: attempts and time

    def event(self, now: float, attempt: Attempt, outcome: Outcome) -> None:
        """Record the outcome of an attempt that has ended, once. An outcome that cannot be recorded fails its task and nothing else."""
        if attempt.ended:
            return
        attempt.ended = True
        source = attempt.source
        try:
            source.ended(now, attempt)
            if not source.inflight:
                source.check_at = inf
                self.wheel.remove(source)
            if isinstance(outcome, Answer):
                self._answered(now, attempt, outcome)
            else:
                self._failed(now, attempt, outcome)
            if self.outages.down or not isinstance(outcome, Answer):
                if is_sign_of_life(outcome):
                    self.outages.end(source, attempt.sent_at)
                elif not source.is_alive():
                    for pool in source.pools:
                        self.outages.check(now, pool)
        except Exception as error:
            self._unrecorded(now, attempt, outcome, error)
        self._fill(now, source)

    def _unrecorded(self, now: float, attempt: Attempt, outcome: Outcome, error: Exception) -> None:
        source, task = attempt.source, attempt.task
        if attempt in source.attempts:
            source.ended(now, attempt)
        finished = any(command[0] == FINISH and command[1] is task for command in self.out)
        if finished or not (attempt.won or task.holds(attempt)):
            return
        if not isinstance(outcome, Failure):
            text = f"endpoint {source.name!r}: its answer cannot be recorded: {type(error).__name__}; report this with the server's answer"
            outcome = Failure(FailureKind.UNSENDABLE, InvalidResponse(text, endpoint=source.name))
            outcome.error.__cause__ = error
        attempt.won = False
        record_attempt(attempt, outcome.kind.name.lower(), now, detail=str(outcome.error))
        self._fail(task, outcome.error)

    def _failed(self, now: float, attempt: Attempt, outcome: Failure | Cancelled) -> None:
        source, task = attempt.source, attempt.task
        decision = self._failure_policy.record(now, attempt, outcome)
        if source.tokens is not None:
            self.tokens.settle(attempt, None)
        if task.prefix is not None:
            source.prefix_cache.failed(task.prefix, attempt.cached, outcome)
        if task.holds(attempt):
            task.drop(attempt)
            self._continue(now, task, decision)
        if decision.lost:
            if not source.health.in_service:
                self._report_down(now, source, described(outcome))
            self.on_source_lost(now, source)
        else:  # others may take tasks that were sent before, because these may be answered sooner there after this failure
            for pool in source.pools:
                if pool.queue.again:
                    self.pump(now, pool)

    def commit(self, now: float, attempt: Attempt) -> None:
        """Commit a task to one of its attempts, because the streamed answer of that attempt is about to be passed to the caller.

        Sets ``attempt.committed``, unless another attempt was faster or the task has ended. The task's other attempt is cancelled. If a
        committed attempt fails, its task fails too, unless the task ``restarts``.
        """
        task = attempt.task
        if attempt.ended or attempt.cancel_reason is not None or not task.holds(attempt):
            return
        attempt.committed = True
        if task.copy is not None:
            self._cancel_other(now, task, attempt)
            task.attempt, task.copy = attempt, None
        elif task.state is TaskState.QUEUED:  # the task was queued for a copy
            task.state = TaskState.SENT
            task.pool.queue.take_back(task)
        attempt.source.began(now, attempt.sent_at)
        self.outages.end(attempt.source, attempt.sent_at)

    def opened(self, now: float, attempt: Attempt, limits: RateLimitInfo) -> None:
        attempt.source.advertised(now, attempt.sent_at, limits, used=0)
        self._fill(now, attempt.source)

    def tick(self, now: float) -> None:
        """Run the timers that are due. Call this method at the time that ``next_wake`` returned, or later."""
        wake = self.next_wake()
        stalled = wake is not None and now - wake > STALLED and not self._stalled  # once only, since a loop may always be late
        self._stalled = stalled
        for item in self.wheel.pop_due(now):
            if isinstance(item, Task):
                if item.state is not TaskState.DONE:  # an earlier timer of this tick may have ended it
                    self._task_due(now, item)
            elif isinstance(item, Source):
                if stalled:
                    item.check_at = max(item.check_at, now + STALLED)
                elif now >= item.check_at:
                    self._inspect(now, item)
                self._wake(item, item.check_at)
                self._fill(now, item)
            elif not stalled:
                self._run_timer(now, item)
            elif item.due < 0:
                self.wheel.add(item, now + STALLED)

    def _run_timer(self, now: float, item: Timed) -> None:
        if isinstance(item, Pool):
            self._check_idle(now, item)
        elif isinstance(item, BatchFeed) and item.pool.sources and all(source.paused for source in item.pool.sources):
            self.wheel.add(item, now + LOOK_PAUSED)
        elif isinstance(item, BatchFeed) and not self.outages.postpone(now, item):
            self._give_up(item, outage_error_factory(item))

    # inputs: the fleet

    def join(self, now: float, source: Source, pool: Pool) -> None:
        self.reroute(now, pool, [*pool.sources, source], pool.balancer)

    def changed(self, now: float, source: Source) -> None:
        """Use the capacity that a source may have gained: it has joined a pool, was marked healthy, or got higher limits."""
        if source.is_alive():
            self.outages.end(source)
        self._fill(now, source)

    def leave(self, now: float, source: Source, pool: Pool) -> None:
        """Remove a source from a pool. Its requests in flight continue."""
        pool.leave(source)
        self._release(now, pool)

    def reroute(self, now: float, pool: Pool, sources: Sequence[Source], balancer: Balancer) -> None:
        """Replace the sources and the balancer of a pool. The pool keeps its queue."""
        before, after = set(pool.sources), set(sources)
        changed = sources if balancer is not pool.balancer else [source for source in sources if source not in before]
        pool.balancer = balancer
        for source in sources:  # before others leave: a pool without any source would fail the tasks that wait
            if source not in before:
                pool.join(source)
                source.look_after = self._hedging.look_after(source)
        for source in [source for source in pool.sources if source not in after]:
            self.leave(now, source, pool)
        for source in changed:
            self.changed(now, source)

    def set_policies(self, before: ClientConfig, after: ClientConfig) -> None:
        """Replace the policies that changed. ``check_attempts_again`` must be called then."""
        self._most_waiting = inf if after.max_queued is None else after.max_queued
        if before.retry != after.retry:
            self._failure_policy = FailurePolicy(after.retry, self.rng)
        if before.hedge != after.hedge or before.retry.attempts != after.retry.attempts:
            self._hedging = HedgingPolicy(after.hedge, after.retry.attempts)

    def check_attempts_again(self, now: float, sources: Sequence[Source]) -> None:
        """Recompute the times at which attempts in flight are checked for being slow, because policies or time limits have changed."""
        for source in sources:
            source.look_after = self._hedging.look_after(source)
            if source.attempts:
                oldest = next(iter(source.attempts))
                source.check_at = min(source.check_at, max(now, oldest.sent_at + source.look_after))
                self._wake(source, source.check_at)

    def _answered(self, now: float, attempt: Attempt, answer: Answer) -> None:
        source, task = attempt.source, attempt.task
        source.answered(now, attempt, answer)
        if task.prefix is not None:
            source.prefix_cache.answered(task.prefix, attempt.cached, answer, now - attempt.sent_at - attempt.held)
            if attempt.cached.tokens and answer.cached_tokens is not None:
                task.pool.holders.uncached = 0 if answer.cached_tokens else task.pool.holders.uncached + 1
        if source.down_since is not None and source.health.is_back:
            self.health_changes.append(HealthChange(source.name, "", now - source.down_since))
            source.down_since = None
        if source.tally.ok % LOOK_ANEW == 0:
            task.pool.common.count(now)
            source.look_after = self._hedging.look_after(source)
        if source.tokens is not None:
            self.tokens.settle(attempt, answer)
        if task.holds(attempt):
            attempt.won = True
            if task.copy is not None:
                self._cancel_other(now, task, attempt)
            self._end(task)
            self.out.append((FINISH, task, answer, source, now - attempt.sent_at))

    def _cancel_other(self, now: float, task: Task, winner: Attempt) -> None:
        loser = task.other(winner)
        assert loser is not None
        record_attempt(loser, "cancelled", now, detail=f"endpoint {winner.source.name!r} answered first")
        self._cancel(loser, CancelReason.BEATEN)

    def _cancel(self, attempt: Attempt, why: CancelReason) -> None:
        if not attempt.ended and attempt.cancel_reason is None:
            attempt.cancel_reason = why
            self.out.append((CANCEL, attempt))

    def _continue(self, now: float, task: Task, decision: RetryDecision) -> None:
        if task.attempt is not None and not decision.final:  # another attempt is in flight, and its outcome decides
            return
        if decision.error is not None:
            self._fail(task, decision.error)
        elif task.state is TaskState.QUEUED:  # it is queued for a copy already, which is now its only attempt
            self.pump(now, task.pool)
        elif decision.wait > 0:
            task.state = TaskState.WAITING
            self.wheel.move(task, min(now + decision.wait, task.deadline))
        else:
            self._place(now, task, decision.best)

    def _task_due(self, now: float, task: Task) -> None:
        if now >= task.deadline:
            task.trail = [*(task.trail or ()), *unanswered(task, now)]
            self._fail(task, timeout_error(now, task))
            return
        if task.timeout is not None:
            self.wheel.add(task, task.deadline)
        self._place(now, task)

    # dispatch: a source takes a task (``_fill``, ``pump`` -> ``_next``), or a source is chosen for a task
    # outside of batches, or for a retry (``_place`` -> ``_choose``)

    def pump(self, now: float, pool: Pool) -> None:
        """Send waiting tasks of a pool. The balancer chooses a source with capacity, and this source takes a task from its queues."""
        unable: tuple[Source, ...] = ()
        while pool.queue.entries:
            source = self._take_ready_source(now, pool, unable)
            if source is None:
                break
            task = self._next(now, source)
            if task is None:
                unable = (*unable, source)
                continue
            self._send(now, task, source)
            self._offer(now, source)
        for source in unable:
            self._offer(now, source)
        if unable:  # items held back from these sources may be released to them later
            self._check_idle_later(now, pool)

    def _place(self, now: float, task: Task, best: Source | None = None) -> None:
        pool, source = task.pool, self._choose(now, task, best)
        if source is not None:
            if not self._too_late(now, task, source):
                self._send(now, task, source)
            self._offer(now, source)
            return
        error = unservable_error(pool) or unsuitable_error(task)
        if error is None and pool.queue.waiting >= self._most_waiting and task.state is TaskState.NEW:
            error = queue_full_error(now, pool, self._most_waiting)
        if error is None:
            pool.queue.put(task)
        else:
            self._fail(task, error)
        if task.failures:  # the best source is not ready, but another one that is may take it
            self.pump(now, pool)
        self._check_idle_later(now, pool)

    def _choose(self, now: float, task: Task, best: Source | None) -> Source | None:
        """Return the source that a task is sent to now, or None if it should wait. The balancer chooses, unless the task has failures."""
        if not (task.failures or task.unfit):
            pool = task.pool
            source = self._take_ready_source(now, pool, (), task)
            if source is None or len(pool.sources) == 1 or task.sent_at is not None or source.health.half_open:  # nothing to wait for
                return source
            patience = pool.patience(now, source, more=1)
            full = pool.queue.waiting >= self._most_waiting
            if not patience or full or now + patience <= task.deadline < now + 2.0 * patience:
                return source
            self._offer(now, source)
            return None
        source = best or task.pool.best(now, task)[1]
        if source is None or source.ready_at(now) > now:
            return None
        for pool in source.pools:
            pool.balancer.forget(source)
        return source

    def _take_ready_source(self, now: float, pool: Pool, avoided: tuple[Source, ...], task: Task | None = None) -> Source | None:
        """Take the source with capacity that the balancer chooses out of its list. The caller gives it back with ``_offer``."""
        while (source := pool.balancer.take(now, pool, avoided, task)) is not None:
            at = source.ready_at(now)
            if at <= now:
                return source
            self._wake(source, at)
        return None

    def _fill(self, now: float, source: Source) -> None:
        """Let a source take tasks while it has capacity: the usual way of a batch, after each answer."""
        while (at := source.ready_at(now)) <= now:
            task = self._next(now, source)
            if task is None:
                for pool in source.pools:
                    pool.balancer.offer(source)
                    self._check_idle_later(now, pool)
                return
            self._send(now, task, source)
        self._wake(source, at)

    def _check_idle_later(self, now: float, pool: Pool) -> None:
        if pool.due < 0 and (pool.batch_inflight or pool.queue.entries):
            self.wheel.add(pool, now + LOOK_LATER)

    def _offer(self, now: float, source: Source) -> None:
        """Give a source to the balancers of its pools if it has capacity, or wake when it is expected to have some."""
        at = source.ready_at(now)
        if at > now:
            self._wake(source, at)
            return
        for pool in source.pools:
            pool.balancer.offer(source)

    def _wake(self, source: Source, at: float) -> None:
        if at != inf and (source.due < 0 or ceil(at * PER_SECOND) < source.due):
            self.wheel.move(source, at)

    def _next(self, now: float, source: Source) -> Task | None:
        """Take the best task for a source from the queues of the source's pools. End tasks that can no longer meet their deadline."""
        pools = source.pools
        while pools:
            pool = pools[0]
            if len(pools) > 1:
                filled = [each for each in pools if each.queue.entries] or pools
                pool = min(filled, key=lambda each: each.queue.best(source, now, patience=each.patience(now, source))[0])
            if not pool.queue.entries:
                break
            taken = pool.queue.take(source, now, patience=pool.patience(now, source))
            if taken is None:
                return None
            task, feed = taken
            if feed is not None:
                self._begin(now, task, feed, source)
                return task
            if not self._too_late(now, task, source):
                return task
        return None

    def _begin(self, now: float, task: Task, feed: BatchFeed, source: Source) -> None:
        """Start a task that a source takes from a batch. Its timeout starts now, or earlier during an outage (see ``OutageTracker``)."""
        task.pool.batch_inflight += 1
        if feed.left is not None:
            feed.left -= 1
        self._start(now, task)
        if task.pool.down_since < inf and task.timeout is not None:
            task.deadline = deadline(now, source, task.pool, task.timeout, feed.opened_at)
            self.wheel.move(task, task.deadline)
        if len(feed.buffer) < feed.read_ahead - READ_AHEAD + LOW:
            self._ask(feed)

    def _too_late(self, now: float, task: Task, source: Source) -> bool:
        """End a task that is not in flight if no source in service can answer it before its deadline. Returns True if the task ended."""
        quick = source.latency.p5
        if task.deadline == inf or now + quick <= task.deadline or task.attempt is not None:
            return False
        if any(now + other.latency.p5 <= task.deadline for other in task.pool.sources if other.health.in_service):
            return False
        self._fail(task, too_late_error(now, task))
        return True

    def _send(self, now: float, task: Task, source: Source) -> None:
        if task.attempt is None and not task.bind(now, source):
            self._end(task)  # nothing to send; who overrides ``bind`` reports the outcome
            return
        attempt = Attempt(task, source, now, task.overdue)
        if source.sends_priority:
            task.payload.level = task.level
        task.state = TaskState.SENT
        task.sends = attempt.number = task.sends + 1
        if task.attempt is not None:
            task.copy = attempt
            attempt.is_copy = True
            task.copies += 1
            source.tally.hedged += 1
        else:
            task.attempt = attempt
            if task.sent_at is None:
                task.sent_at = now
                self._hedging.sends += 1
            else:
                source.tally.retried += is_retry(task.trail or ())
        source.sent(now, attempt)
        if task.prefix is not None:
            attempt.cached = source.prefix_cache.use(now, task.prefix)
            task.pool.holders.add(task.prefix, source, first=task.sends == 1)
        if source.tokens is not None:
            self.tokens.reserve(now, attempt)
        task.pool.balancer.sent(source)
        if source.check_at == inf:
            source.check_at = now + source.look_after
            self._wake(source, source.check_at)
        self.out.append((SEND, attempt))

    def _report_down(self, now: float, source: Source, reason: str) -> None:
        """Report that a source went out of service. Further calls report nothing until the source is back in service."""
        if source.down_since is None:
            source.down_since = now
            source.prefix_cache.forget()  # it may return with an empty cache
            away = source.health.open_until - now
            again = "every few seconds" if away < 60.0 else f"in {away / 60.0:.0f} min"
            self.health_changes.append(HealthChange(source.name, f"{reason}; it is tried again {again}", 0.0))

    def _start(self, now: float, task: Task) -> None:
        self._numbers += 1
        task.number = self._numbers
        task.pool.live += 1
        task.born = now
        if task.timeout is not None:
            task.deadline = now + task.timeout
            self.wheel.add(task, task.deadline)

    def _ask(self, feed: BatchFeed) -> None:
        if not feed.more_requested and not feed.ended:
            feed.more_requested = True
            self.out.append((MORE, feed))

    def _fail(self, task: Task, error: QRewardError) -> None:
        self._end(task)
        self.out.append((FINISH, task, error, None, 0.0))

    def _end(self, task: Task) -> None:
        task.state = TaskState.DONE
        self.wheel.remove(task)
        if task.queued:
            task.pool.queue.ended(task)
        pool = task.pool
        pool.ended += 1
        pool.live -= task.number > 0
        pool.batch_inflight -= task.feed is not None
        if pool.due >= 0 and not pool.batch_inflight and not pool.queue.entries:
            self.wheel.remove(pool)
        attempt, copy = task.attempt, task.copy
        task.attempt = task.copy = None
        if attempt is not None and not attempt.ended:
            self._cancel(attempt, CancelReason.ABANDONED)
        if copy is not None and not copy.ended:
            self._cancel(copy, CancelReason.ABANDONED)

    # loss of sources

    def on_source_lost(self, now: float, source: Source) -> None:
        """Let other sources take the tasks that waited for a source, because that source became unavailable."""
        for pool in source.pools:
            self._release(now, pool)

    def _release(self, now: float, pool: Pool) -> None:
        pool.compare_at = -inf  # what was left to the lost source is not
        self._check_outage(now, pool)
        for task in pool.queue.unservable(pool.sources):
            if task.attempt is not None:  # it was queued for a copy that no source can take now
                task.state = TaskState.SENT
            else:
                self._place(now, task)
        self.pump(now, pool)

    def _check_outage(self, now: float, pool: Pool) -> None:
        self.outages.check(now, pool)
        error = unservable_error(pool)
        if error is None:
            return
        tasks = pool.queue.empty()
        for task in tasks:
            if task.attempt is not None:  # it was queued for a copy, and its first attempt is in flight
                task.state = TaskState.SENT
            else:
                self._fail(task, error)
        for feed in pool.feeds:
            if feed.make_error is None:
                self._give_up(feed, partial(type(error), str(error)))

    def _give_up(self, feed: BatchFeed, failing: Callable[[], QRewardError]) -> None:
        """Fail the waiting items of a batch. Items that are read later fail too, until a source of the batch's pool is alive."""
        feed.make_error = failing
        self.wheel.remove(feed)
        self._fail_waiting(feed, failing)
        feed.more_requested = True
        self.out.append((MORE, feed))

    def _fail_waiting(self, feed: BatchFeed, failing: Callable[[], QRewardError]) -> None:
        """Fail the buffered items of a batch. While input remains, one is kept: only a request can show that a source is alive."""
        while len(feed.buffer) > (not feed.ended):
            self._fail(feed.buffer.popleft(), failing())
        if not feed.buffer:
            feed.pool.queue.drop_feed(feed)

    # inspection of attempts that take too long

    def _inspect(self, now: float, source: Source) -> None:
        """Inspect the attempts at a source: cancel those that have exceeded their time limit, copy those that seem to hang or are late."""
        for pool in source.pools:
            pool.common.count(now)
        if now >= stalls_at(source):
            self._on_stall(now, source)
        found, next_at = self._hedging.inspect(now, source)
        for kind, attempt in found:
            task = attempt.task
            if kind is Overdue.TIMED_OUT:
                self._cancel(attempt, CancelReason.OVERDUE)
            elif kind is Overdue.LATE:
                target = self._take_ready_source(now, task.pool, self._hedging.others(task))
                if target is not None:
                    if self._hedging.is_late(now, attempt, target) and self._hedging.withdraw():
                        self._send(now, task, target)
                    self._offer(now, target)
            elif task.pool.best(now, task)[0] < inf and self._hedging.withdraw():
                task.suspected += 1
                self._copy(now, task)
        source.look_after = self._hedging.look_after(source)
        soonest = min(next_at, stalls_at(source), now + source.look_after)
        if any(self._hedging.may_be_copied(attempt) for _, attempt in found):  # no source had capacity for the copy
            soonest = min(soonest, now + LOOK_LATER)
        source.check_at = max(soonest, now + min(LOOK_LATER, source.look_after / 8)) if source.inflight else inf

    def _on_stall(self, now: float, source: Source) -> None:
        """Take a stalled source out of service, unless it is the last one, and copy its attempts if that is allowed."""
        innocent = sum(not (attempt.task.tries or attempt.task.suspected or attempt.committed) for attempt in source.attempts)
        if innocent + source.silence.beaten < LEAST_SENT or source.is_last():
            source.silence.begin(now, source.spent(now))
            return
        self._report_down(now, source, f"none of {source.inflight} requests in flight was answered for {now - source.silence.since:.1f} s")
        source.silence.since = inf
        source.health.stall(now)
        for attempt in list(source.attempts):
            source.failed(now)
            if self._hedging.may_be_copied(attempt):
                self._copy(now, attempt.task)
        self.on_source_lost(now, source)

    def _copy(self, now: float, task: Task) -> None:
        """Send a task to the best source besides the one that works on it, or queue it ahead of tasks that were never sent."""
        source = task.pool.best(now, task)[1]
        if source is None or source.ready_at(now) > now:
            task.pool.queue.put(task)
        else:
            self._send(now, task, source)
            self._offer(now, source)

    def _check_idle(self, now: float, pool: Pool) -> None:
        """Let idle sources take the items that were held back, or copy the last requests of batches to idle sources."""
        if pool.queue.entries:
            for source in pool.sources:
                self._fill(now, source)
        if not pool.queue.entries:
            pool.common.count(now)
            for task, source in self._hedging.tail(now, pool):
                self._send(now, task, source)
                self._offer(now, source)
        if any(source.ready_at(now) <= now for source in pool.sources):
            self._check_idle_later(now, pool)
