"""Brings work and sources together: who takes the next task, and what is counted when it is sent or has ended.

Base of the scheduler. Knows nothing of failures, nor of what takes too long.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from random import Random
from typing import Any

from qreward.core import endings
from qreward.core.aftermath import Aftermath
from qreward.core.commands import CANCEL, FINISH, MORE, SEND, Command
from qreward.core.duplicates import Duplicates
from qreward.core.health import HealthChange
from qreward.core.pool import Pool
from qreward.core.source import Source
from qreward.core.task import Attempt, Feed, State, Task, Why
from qreward.core.timers import PER_SECOND, Wheel
from qreward.core.tokens import Tokens
from qreward.errors import QRewardError
from qreward.policies import Hedge, Retry
from qreward.results import has_failed

LOOK_LATER = 0.25
"""Seconds between two looks at a pool with idle sources, and at attempts that should have a copy and found no room."""


class Dispatch:
    """Work, sources, and the commands that come of them.

    Args:
        retry: the retry policy.
        rng: all randomness comes from here.
        estimate: gives (prompt, most output) tokens of a payload; only asked for sources with a token limit, and while several
            bulks or tenants share a priority.
        hedge: when a request is sent to a second source as well; None is never.
        most_waiting: single tasks that may wait in a pool; one more ends with ``QueueFull``. None is any number.

    Attributes:
        rng: as given.
        out: the commands of the last input.
        health_changes: sources that went out of service or came back, until the engine has taken them.
        wheel: all that is due at some time.
    """

    def __init__(
        self,
        retry: Retry,
        rng: Random,
        estimate: Callable[[Any], tuple[float, float]] | None = None,
        hedge: Hedge | None = None,
        most_waiting: int | None = None,
    ) -> None:
        self.rng = rng
        self.out: list[Command] = []
        self.health_changes: list[HealthChange] = []
        self.wheel = Wheel()
        self.tokens = Tokens(estimate)
        self._aftermath = Aftermath(retry, rng)
        self._duplicates = Duplicates(hedge, retry.attempts)
        self._estimate = estimate
        self._most_waiting = most_waiting
        self._numbers = 0
        self._stalled = False  # the last tick came late

    @property
    def hedge_budget(self) -> float:
        """Copies that may be made now."""
        return self._duplicates.balance

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
        if unable:  # what is held back from them may be theirs later
            self._look_later(now, pool)

    def _place(self, now: float, task: Task) -> None:
        if task.excluded and not task.pool.awaits(now, task.excluded):  # sources may have gone since it began to avoid the others
            task.excluded = task.unfit
        pool = task.pool
        source = self._ready(now, pool, task.excluded)
        if source is not None and not self._too_late(now, task, source):
            if pool.queue.levels and task.sent_at is None:
                pool.queue.passed(task)
            self._send(now, task, source)
        elif source is None:
            self._line_up(task)
        if source is not None:
            self._offer(now, source)

    def _line_up(self, task: Task) -> None:
        pool = task.pool
        error = endings.hopeless(pool) or endings.unfit(task)
        if error is None and self._most_waiting is not None and task.state is State.NEW and pool.queue.waiting >= self._most_waiting:
            error = endings.full(pool, self._most_waiting)
        if error is None:
            pool.queue.put(task)
        else:
            self._finish(task, error)

    def _ready(self, now: float, pool: Pool, avoided: tuple[Source, ...]) -> Source | None:
        take = pool.balancer.take
        while (source := take(avoided)) is not None:
            at = source.ready_at(now)
            if at <= now:
                return source
            self._wake(source, at)
        return None

    def _fill(self, now: float, source: Source) -> None:
        while (at := source.ready_at(now)) <= now:
            task = self._next(now, source)
            if task is None:
                for pool in source.pools:
                    pool.balancer.offer(source)
                    self._look_later(now, pool)
                return
            self._send(now, task, source)
        self._wake(source, at)

    def _look_later(self, now: float, pool: Pool) -> None:
        if pool.due < 0 and (pool.bulks or pool.queue.levels):
            self.wheel.add(pool, now + LOOK_LATER)

    def _offer(self, now: float, source: Source) -> None:
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
        """Take the best task for a source from its pools; one that cannot make it any more is ended."""
        while (pool := self._best_pool(now, source)) is not None:
            taken = pool.queue.take(source, now, bulk=pool.gives_bulk_to(now, source))
            if taken is None:
                return None
            task, feed = taken
            if feed is not None:
                self._begin(now, task, feed)
                return task
            if not self._too_late(now, task, source):
                return task
        return None

    @staticmethod
    def _best_pool(now: float, source: Source) -> Pool | None:
        pools = source.pools
        if len(pools) == 1:
            return pools[0] if pools[0].queue.levels else None
        waiting = [pool for pool in pools if pool.queue.levels]
        if not waiting:
            return None
        return min(waiting, key=lambda pool: pool.queue.key(source, bulk=pool.gives_bulk_to(now, source)))

    def _begin(self, now: float, task: Task, feed: Feed) -> None:
        """A task was taken from a bulk: its time begins."""
        task.pool.bulks += 1
        if feed.left is not None:
            feed.left -= 1
        self._start(now, task)
        if len(feed.buffer) < Feed.LOW:
            self._ask(feed)

    def _cost(self, task: Task) -> float:
        """Tokens that a task is expected to use, for fair shares."""
        prompt = self._estimate(task.payload)[0] if self._estimate is not None else 0.0
        return prompt + task.pool.lengths.mean

    def _too_late(self, now: float, task: Task, source: Source) -> bool:
        """End a task that cannot be answered in time by anybody, before it is sent."""
        quick = source.latency.quick
        if task.deadline == inf or now + quick <= task.deadline or task.attempt is not None:
            return False
        if any(now + other.latency.quick <= task.deadline for other in task.pool.sources if other.health.in_service):
            return False
        self._finish(task, endings.too_late(task))
        return True

    def _send(self, now: float, task: Task, source: Source) -> None:
        if task.attempt is None and not task.load(now, source):
            self._end(task)  # what it was to carry has gone with another: as if it were withdrawn
            return
        attempt = Attempt(task, source, now)
        task.state = State.SENT
        task.sends = attempt.number = task.sends + 1
        if task.attempt is not None:
            task.copy = attempt
            attempt.hedge = True
            task.copies += 1
            source.tally.hedged += 1
        else:
            task.attempt = attempt
            if task.sent_at is None:
                task.sent_at = now
                self._aftermath.budget.deposit()
                self._duplicates.deposit()
            else:
                source.tally.retried += has_failed(task.trail or ())
        source.sent(now, attempt)
        source.singles += task.feed is None
        if source.tokens is not None:
            self.tokens.reserve(now, attempt)
        task.pool.balancer.sent(source)
        if source.check_at == inf:
            source.check_at = now + source.look_after
            self._wake(source, source.check_at)
        self.out.append((SEND, attempt))

    def _went_down(self, now: float, source: Source, reason: str) -> None:
        """Report a source that is out of service; once until it is back."""
        if source.down_since is None:
            source.down_since = now
            self.health_changes.append(HealthChange(source.name, reason, 0.0))

    def _came_back(self, now: float, source: Source) -> None:
        assert source.down_since is not None
        self.health_changes.append(HealthChange(source.name, "", now - source.down_since))
        source.down_since = None

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

    def _end(self, task: Task, tokens: float | None = None) -> None:
        task.state = State.DONE
        self.wheel.remove(task)
        if task.lined:
            task.pool.queue.ended(task)
        if task.charge:
            task.pool.queue.settle(task, tokens if tokens is not None else task.charge if task.sent_at is not None else 0.0)
        if task.feed is not None:
            pool = task.pool
            pool.bulks -= 1
            if not pool.bulks and not pool.queue.levels:
                self.wheel.remove(pool)
        attempts = task.attempt, task.copy
        task.attempt = task.copy = None
        for attempt in attempts:
            if attempt is not None and not attempt.ended and attempt.why is None:
                attempt.why = Why.ABANDONED
                self.out.append((CANCEL, attempt))

    # who is left

    def lost(self, now: float, source: Source) -> None:
        """A source is out of service: tasks that waited for it alone may go elsewhere, or fail if there is nothing else."""
        for pool in source.pools:
            self._reclaim(now, pool)

    def _reclaim(self, now: float, pool: Pool) -> None:
        self._check(now, pool)
        usable = tuple(source for source in pool.sources if source.worth_waiting_for(now))
        for task in pool.queue.reclaim(usable):
            if task.attempt is not None:  # it waited for a copy, of which there is no hope now
                task.state = State.SENT
            else:
                task.excluded = task.unfit
                self._place(now, task)

    def _check(self, now: float, pool: Pool) -> None:
        error = endings.hopeless(pool)
        if error is None:
            return
        tasks, feeds = pool.queue.empty()
        for task in tasks:
            if task.attempt is not None:  # it waited for a copy; the first attempt is still under way
                task.state = State.SENT
                continue
            if task.state is State.NEW:
                self._start(now, task)
            self._finish(task, error)
        for feed in feeds:
            self._ask(feed)
