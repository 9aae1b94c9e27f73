"""The scheduler: one queue a pool, pulled by the sources; events and ``now`` in, commands in ``out``.

Rules that hold between any two calls:
1. work conservation: while a task waits, no source that it may go to is able to take it;
2. a source never has more in flight than its window, and is never asked before ``ready_at``;
3. every task submitted or taken from a feed gets exactly one FINISH, unless it is withdrawn;
4. every SEND is answered by exactly one event; later ones are ignored.
What an outcome means is in ``aftermath``; when a source may be asked is in ``source``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, inf
from random import Random
from typing import Any

from qreward.core.aftermath import Aftermath
from qreward.core.balance import Balancer
from qreward.core.commands import CANCEL, FINISH, MORE, SEND, Command
from qreward.core.outcome import Answer, Outcome
from qreward.core.pool import Pool
from qreward.core.source import ATTEMPT_LEAST, Source
from qreward.core.task import Attempt, Feed, State, Task, Why
from qreward.core.timers import PER_SECOND, Wheel
from qreward.core.tokens import Tokens
from qreward.errors import CircuitOpen, NoEndpoint, QRewardError, RequestTimeout
from qreward.policies import Retry


class Scheduler:
    """Decides what is sent where and when.

    Args:
        retry: the retry policy.
        rng: all randomness comes from here.
        estimate: gives (prompt, most output) tokens of a payload; only asked for sources with a token limit.
    """

    def __init__(self, retry: Retry, rng: Random, estimate: Callable[[Any], tuple[float, float]] | None = None) -> None:
        self.out: list[Command] = []
        self.wheel = Wheel()
        self.tokens = Tokens(estimate)
        self._aftermath = Aftermath(retry, rng)
        self._numbers = 0

    # inputs: work

    def submit(self, now: float, task: Task) -> None:
        """Take in a task; it is sent at once if a source has room."""
        self._start(now, task)
        self._place(now, task)

    def open(self, _now: float, feed: Feed) -> None:
        """Take in a bulk; its input is asked for by ``MORE``."""
        self._ask(feed)

    def refill(self, now: float, feed: Feed) -> None:
        """The shell has put tasks into a feed's buffer, or marked it as ended."""
        feed.asked = False
        if feed.buffer:
            feed.pool.queue.put_feed(feed)
            self._check(now, feed.pool)
            self.pump(now, feed.pool)

    def close_feed(self, feed: Feed) -> list[Task]:
        """End a bulk; what was read ahead is returned, and was never started."""
        feed.ended = True
        feed.pool.queue.drop_feed(feed)
        rest = list(feed.buffer)
        feed.buffer.clear()
        return rest

    def withdraw(self, _now: float, tasks: Iterable[Task]) -> None:
        """The caller does not want them any more: no FINISH follows, and what is under way is stopped."""
        for task in tasks:
            if task.state is not State.DONE:
                self._end(task)

    # inputs: what became of it

    def event(self, now: float, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt ended. Reports after the first are ignored."""
        source, task = attempt.source, attempt.task
        if attempt.ended:
            return
        attempt.ended = True
        del source.attempts[attempt]
        source.inflight -= 1
        if not source.inflight:
            source.check_at = inf
            self.wheel.remove(source)
        if isinstance(outcome, Answer):
            self._answered(now, attempt, outcome)
        else:
            verdict = self._aftermath.of(now, attempt, outcome)
            if source.tokens is not None:
                self.tokens.settle(attempt, None)
            if task.attempt is attempt:
                task.attempt = None
                self._go_on(now, task, verdict.wait, verdict.error)
            if verdict.lost:
                if not source.health.in_service:
                    self._aftermath.budget.grant(source.inflight)
                self.lost(now, source)
        self._fill(now, source)

    def tick(self, now: float) -> None:
        """Do what is due. Call it at ``next_wake`` or later."""
        for item in self.wheel.pop_due(now):
            if isinstance(item, Task):
                self._task_due(now, item)
            elif isinstance(item, Source):
                if now >= item.check_at:
                    self._stop_overdue(now, item)
                self._wake(item, item.check_at)
                self._fill(now, item)

    def next_wake(self) -> float | None:
        """When ``tick`` is to be called next, or None. It may be a little earlier than needed, never later."""
        return self.wheel.next_wake()

    # inputs: the fleet

    def join(self, now: float, source: Source, pool: Pool) -> None:
        """A source begins to serve a pool."""
        pool.join(source)
        self.changed(now, source)

    def changed(self, now: float, source: Source) -> None:
        """A source may have become able to take work: joined, marked healthy, its limits raised."""
        self._fill(now, source)

    def lost(self, now: float, source: Source) -> None:
        """A source is out of service: tasks that waited for it alone may go elsewhere, or fail if there is nothing else."""
        for pool in source.pools:
            self._reclaim(now, pool)

    def leave(self, now: float, source: Source, pool: Pool) -> None:
        """A source ceases to serve a pool; what it has in flight is finished."""
        pool.leave(source)
        self._reclaim(now, pool)

    def _reclaim(self, now: float, pool: Pool) -> None:
        self._check(now, pool)
        usable = tuple(source for source in pool.sources if source.worth_waiting_for(now))
        for task in pool.queue.reclaim(usable):
            task.excluded = task.unfit
            self._place(now, task)

    def reroute(self, now: float, pool: Pool, sources: Sequence[Source], balancer: Balancer) -> None:
        """A pool gets other sources and another way to choose; what waits in it stays."""
        pool.balancer = balancer
        for source in sources:  # before others leave: a pool without any source would fail what waits
            if source not in pool.sources:
                pool.join(source)
        for source in [source for source in pool.sources if source not in sources]:
            self.leave(now, source, pool)
        for source in sources:
            self.changed(now, source)

    def resize(self, sources: Sequence[Source]) -> None:
        """Tell the retry budget how much can be in flight."""
        self._aftermath.budget.capacity = sum(source.window.limit for source in sources)

    # dispatch

    def pump(self, now: float, pool: Pool) -> None:
        """Give waiting tasks to sources with room, each to the best one."""
        unable: tuple[Source, ...] = ()
        while pool.queue:
            source = self._ready(now, pool, unable)
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

    def _place(self, now: float, task: Task) -> None:
        if task.excluded and not self._awaits_another(now, task):
            task.excluded = task.unfit
        source = self._ready(now, task.pool, task.excluded)
        if source is None:
            error = self._hopeless(task.pool) or self._unfit(task)
            if error is None:
                task.pool.queue.put(task)
            else:
                self._finish(task, error)
        else:
            self._send(now, task, source)
            self._offer(now, source)

    def _ready(self, now: float, pool: Pool, avoided: tuple[Source, ...]) -> Source | None:
        take = pool.balancer.take
        while (source := take(avoided)) is not None:
            at = source.ready_at()
            if at <= now:
                return source
            self._wake(source, at)
        return None

    def _fill(self, now: float, source: Source) -> None:
        while (at := source.ready_at()) <= now:
            task = self._next(now, source)
            if task is None:
                for pool in source.pools:
                    pool.balancer.offer(source)
                return
            self._send(now, task, source)
        self._wake(source, at)

    def _offer(self, now: float, source: Source) -> None:
        at = source.ready_at()
        if at > now:
            self._wake(source, at)
            return
        for pool in source.pools:
            pool.balancer.offer(source)

    def _wake(self, source: Source, at: float) -> None:
        if at != inf and (source.due < 0 or ceil(at * PER_SECOND) < source.due):
            self.wheel.move(source, at)

    def _next(self, now: float, source: Source) -> Task | None:
        pools = source.pools
        if len(pools) == 1:
            queue = pools[0].queue
        elif pools:
            queue = min((pool.queue for pool in pools), key=lambda queue: queue.key(source))
        else:
            return None
        if not queue.levels:
            return None
        taken = queue.take(source, now)
        if taken is None:
            return None
        task, feed = taken
        if feed is not None:
            self._start(now, task)
            if len(feed.buffer) < Feed.LOW:
                self._ask(feed)
        return task

    def _send(self, now: float, task: Task, source: Source) -> None:
        attempt = Attempt(task, source, now)
        task.attempt, task.state = attempt, State.SENT
        if task.sent_at is None:
            task.sent_at = now
            self._aftermath.budget.deposit()
        else:
            source.tally.retried += 1
        source.sent(now, attempt)
        if source.tokens is not None:
            self.tokens.reserve(now, attempt)
        task.pool.balancer.sent(source)
        if source.check_at == inf:
            source.check_at = now + min(ATTEMPT_LEAST, source.attempt_limit(0))
            self._wake(source, source.check_at)
        self.out.append((SEND, attempt))

    # what follows

    def _answered(self, now: float, attempt: Attempt, answer: Answer) -> None:
        source, task = attempt.source, attempt.task
        source.answered(now, attempt.sent_at, answer)
        if source.tokens is not None:
            self.tokens.settle(attempt, answer)
        if task.attempt is attempt:
            self._end(task)
            self.out.append((FINISH, task, answer, source, now - attempt.sent_at))

    def _go_on(self, now: float, task: Task, wait: float, error: QRewardError | None) -> None:
        if error is not None:
            self._finish(task, error)
        elif wait > 0:
            task.state = State.WAITING
            self.wheel.move(task, min(now + wait, task.deadline))
        else:
            self._place(now, task)

    def _stop_overdue(self, now: float, source: Source) -> None:
        """Stop attempts past their limit, and look again in time: limits shrink as the source shows its speed."""
        soonest = inf
        for attempt in source.attempts:
            limit_at = attempt.sent_at + source.attempt_limit(attempt.task.overdue)
            if attempt.why is not None:
                continue
            if now < limit_at:
                soonest = min(soonest, limit_at)
            else:
                attempt.why = Why.OVERDUE
                self.out.append((CANCEL, attempt))
        source.check_at = min(soonest, now + ATTEMPT_LEAST) if soonest < inf else inf

    def _task_due(self, now: float, task: Task) -> None:
        if now >= task.deadline:
            self._finish(task, self._timed_out(task))
            return
        if task.timeout is not None:
            self.wheel.add(task, task.deadline)
        self._place(now, task)

    @staticmethod
    def _timed_out(task: Task) -> RequestTimeout:
        seen = "it was never sent: no endpoint had room" if task.sent_at is None else "an attempt was under way or waiting"
        if task.last_error is not None:
            seen = f"the last failure was: {task.last_error}"
        error = RequestTimeout(f"no answer within the timeout of {task.timeout:g} s (queueing included) over {task.pool.name}; {seen}")
        error.__cause__ = task.last_error
        return error

    def _start(self, now: float, task: Task) -> None:
        self._numbers += 1
        task.number = self._numbers
        task.born = now
        if task.timeout is not None:
            task.deadline = now + task.timeout
            self.wheel.add(task, task.deadline)

    def _ask(self, feed: Feed) -> None:
        if not feed.asked and not feed.ended:
            feed.asked = True
            self.out.append((MORE, feed))

    def _finish(self, task: Task, error: QRewardError) -> None:
        self._end(task)
        self.out.append((FINISH, task, error, None, 0.0))

    def _end(self, task: Task) -> None:
        task.state = State.DONE
        self.wheel.remove(task)
        attempt, task.attempt = task.attempt, None
        if attempt is not None and not attempt.ended and attempt.why is None:
            attempt.why = Why.ABANDONED
            self.out.append((CANCEL, attempt))

    def _hopeless(self, pool: Pool) -> QRewardError | None:
        if not pool.sources:
            return NoEndpoint(f"the route {pool.name} has no endpoint left; add one, or register the route anew")
        if all(source.health.down for source in pool.sources):
            names = ", ".join(repr(source.name) for source in pool.sources)
            return CircuitOpen(f"every endpoint of the route {pool.name} is marked unhealthy ({names}); mark_healthy brings one back")
        return None

    @staticmethod
    def _awaits_another(now: float, task: Task) -> bool:
        """Whether what a task avoids leaves somebody: sources may have gone since it began to avoid the others."""
        return any(source not in task.excluded and source.worth_waiting_for(now) for source in task.pool.sources)

    @staticmethod
    def _unfit(task: Task) -> QRewardError | None:
        if task.unfit and all(source in task.unfit or source.health.down for source in task.pool.sources):
            return task.last_error
        return None

    def _check(self, now: float, pool: Pool) -> None:
        error = self._hopeless(pool)
        if error is None:
            return
        tasks, feeds = pool.queue.empty()
        for task in tasks:
            if task.state is State.NEW:
                self._start(now, task)
            self._finish(task, error)
        for feed in feeds:
            self._ask(feed)
