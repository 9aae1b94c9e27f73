"""A scheduler with a hand on the clock: every input goes through here, and every invariant is checked after each.

``Driver`` serves tests that play one scene, the state machine, and the simulator. It knows nothing of servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice
from random import Random
from typing import Any

from scheduler_watch import Watch, WatchedSource

from qreward.errors import (
    AuthenticationFailed,
    BadRequest,
    ConnectionFailed,
    QRewardError,
    RateLimited,
    RequestTimeout,
    ServerError,
)
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome
from qreward.scheduler.pool import BALANCERS, Pool
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.queue import Queue
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, Task
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy, Retry

NORMAL = 5
CHUNK = 32

ERRORS: dict[FailureKind, QRewardError] = {
    FailureKind.OVERLOADED: RateLimited("no room"),
    FailureKind.QUOTA: RateLimited("the account is used up"),
    FailureKind.TRANSIENT: ServerError("it broke"),
    FailureKind.UNREACHABLE: ConnectionFailed("nobody there"),
    FailureKind.TIMEOUT: RequestTimeout("too slow"),
    FailureKind.UNSUITABLE: AuthenticationFailed("not with this key"),
    FailureKind.REFUSED: BadRequest("not like this"),
    FailureKind.UNSENDABLE: BadRequest("cannot be written"),
    FailureKind.LOCAL: ConnectionFailed("too many open files"),
}


def failure(kind: FailureKind, **more: Any) -> Failure:
    """An outcome of that kind, with the error a caller would see."""
    return Failure(kind, ERRORS[kind], **more)


class Driver:
    """One scheduler, its sources by name, and the time.

    Args:
        caps: name -> most requests in flight, of the sources in the first pool.
        thorough: check the whole state after every input, not only the commands.
        refill: answer MORE at once; otherwise ``serve`` does.
    """

    def __init__(
        self,
        caps: Mapping[str, int] | None = None,
        *,
        retry: Retry | None = None,
        strategy: LoadBalanceStrategy = LoadBalanceStrategy.EXPECTED_FINISH,
        weights: dict[str, float] | None = None,
        estimate: Callable[[Any], tuple[float, float]] | None = None,
        hedge: Hedge | None = None,
        most_waiting: int | None = None,
        seed: int = 0,
        thorough: bool = True,
        refill: bool = True,
    ) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.scheduler = Scheduler(retry or Retry(), self.rng, estimate, hedge, most_waiting)
        self.watch = Watch(self.scheduler, thorough=thorough)
        self.sources: dict[str, Source] = {}
        self.pool = self.new_pool("first", strategy, weights)
        self._input: dict[BatchFeed, list[Task]] = {}
        self._refill = refill
        self.made = self.unread = 0  # tasks, and those of batches that were given up before they were read
        for name, cap in (caps or {}).items():
            self.add(name, Limits(max_concurrency=cap))

    # the fleet

    def new_pool(
        self, name: str, strategy: LoadBalanceStrategy = LoadBalanceStrategy.EXPECTED_FINISH, weights: dict[str, float] | None = None
    ) -> Pool:
        pool = Pool(name, [], BALANCERS[strategy](weights), Queue())
        self.watch.pools[pool] = None
        return pool

    def add(self, name: str, limits: Limits | None = None, *, pools: Iterable[Pool] | None = None, **more: Any) -> Source:
        """Make a source and let it join."""
        source = self.sources[name] = WatchedSource(name, self.rng, limits, **more)
        self.watch.sources[source] = None
        for pool in [self.pool] if pools is None else pools:
            self.join(name, pool)
        return source

    def __getitem__(self, name: str) -> Source:
        return self.sources[name]

    def join(self, name: str, pool: Pool | None = None) -> None:
        self.scheduler.join(self.now, self[name], pool or self.pool)
        self._after()

    def leave(self, name: str, pool: Pool | None = None) -> None:
        self.scheduler.leave(self.now, self[name], pool or self.pool)
        self._after()

    def remove(self, name: str) -> None:
        """Take a source out of the fleet for good."""
        source = self[name]
        source.removed = True
        for pool in list(source.pools):
            self.scheduler.leave(self.now, source, pool)
        self._after()

    def mark(self, name: str, *, down: bool) -> None:
        source = self[name]
        if down:
            source.health.mark_unhealthy()
            self.scheduler.on_source_lost(self.now, source)
        else:
            source.health.restore()
            self.scheduler.changed(self.now, source)
        self._after()

    def reroute(self, names: Sequence[str], pool: Pool | None = None, strategy: LoadBalanceStrategy | None = None) -> None:
        balancer = BALANCERS[strategy or LoadBalanceStrategy.EXPECTED_FINISH]()
        self.scheduler.reroute(self.now, pool or self.pool, [self[name] for name in names], balancer)
        self._after()

    # work

    def task(
        self,
        level: int = NORMAL,
        timeout: float | None = None,
        pool: Pool | None = None,
        payload: Any = None,
        prefix: Prefix | None = None,
        tenant: str | None = None,
    ) -> Task:
        self.made += 1
        task = Task(payload, pool or self.pool, level, timeout, None, self.made, tenant)
        task.prefix = prefix
        return task

    def submit(
        self,
        level: int = NORMAL,
        timeout: float | None = None,
        pool: Pool | None = None,
        payload: Any = None,
        prefix: Prefix | None = None,
        tenant: str | None = None,
    ) -> Task:
        task = self.task(level, timeout, pool, payload, prefix, tenant)
        self.watch.open[task] = None
        self.scheduler.submit(self.now, task)
        self._after()
        return task

    def feed(
        self,
        count: int,
        level: int = NORMAL,
        timeout: float | None = None,
        pool: Pool | None = None,
        *,
        told: bool = False,
        prefixes: Sequence[Prefix | None] = (None,),
    ) -> BatchFeed:
        """Open a bulk of so many tasks; ``told``: its size is known beforehand; ``prefixes``: of the tasks in turn."""
        feed = BatchFeed(pool or self.pool, level, len(self._input), self.now, timeout=timeout)
        feed.left = count if told else None
        self._input[feed] = [self.task(level, timeout, feed.pool, prefix=prefix) for prefix in islice(cycle(prefixes), count)][::-1]
        self.watch.feeds[feed] = None
        self.scheduler.open(self.now, feed)
        self._after()
        return feed

    def serve(self, feed: BatchFeed, most: int = CHUNK) -> None:
        """Answer a feed's MORE."""
        del self.watch.asked[feed]
        if feed.ended:
            return
        rest = self._input[feed]
        for _ in range(min(most, len(rest))):
            feed.buffer.append(rest.pop())
        feed.ended = not rest
        self.scheduler.refill(self.now, feed)
        self._after()

    def close_feed(self, feed: BatchFeed) -> list[Task]:
        self.unread += len(self._input[feed])
        self._input[feed].clear()
        rest = self.scheduler.close_feed(feed)
        self._after()
        return rest

    def withdraw(self, *tasks: Task) -> None:
        for task in tasks:
            self.watch.withdraw(task)
        self.scheduler.withdraw(self.now, tasks)
        self._after()

    # what became of it

    def end(self, attempt: Attempt, outcome: Outcome, after: float = 0.0) -> None:
        """Report an attempt's end, so many seconds from now; what is due until then happens first."""
        self.wait(after)
        self.report(attempt, outcome)

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """Report an attempt's end at this very moment, even if something else is overdue."""
        self.watch.event(self.now, attempt, outcome)
        self.scheduler.event(self.now, attempt, outcome)
        self._after()

    def ok(self, attempt: Attempt, after: float = 1.0, prompt: int | None = 10, output: int | None = 20) -> None:
        self.end(attempt, Answer("yes", prompt, output), after)

    def fail(self, attempt: Attempt, kind: FailureKind, after: float = 0.01, **more: Any) -> None:
        self.end(attempt, failure(kind, **more), after)

    def cancelled(self, attempt: Attempt, after: float = 0.0) -> None:
        self.end(attempt, CANCELLED, after)

    # time

    def tick(self) -> None:
        self.scheduler.tick(self.now)
        self._after()
        wake = self.scheduler.next_wake()
        assert wake is None or wake > self.now, "a tick leaves something due: the clock of a simulation would stand still"

    def wait(self, seconds: float) -> None:
        """Let time pass, and tick whenever the scheduler asked for it."""
        self.until(self.now + seconds)

    def until(self, then: float) -> None:
        while (wake := self.scheduler.next_wake()) is not None and wake <= then:
            self.now = max(self.now, wake)
            self.tick()
        self.now = max(self.now, then)

    # what is to be seen

    def at(self, name: str) -> list[Attempt]:
        """Attempts under way at a source, oldest first."""
        return [attempt for attempt in self.watch.live if attempt.source.name == name]

    def where(self, task: Task) -> str | None:
        """The source that works on a task."""
        return task.attempt.source.name if task.attempt is not None else None

    def path(self, task: Task) -> list[str]:
        """The sources a task was sent to, in order."""
        return [attempt.source.name for _, attempt in self.watch.sends if attempt.task is task]

    def outcome(self, task: Task) -> Answer | QRewardError | None:
        return self.watch.finished.get(task)

    def is_cancelled(self, attempt: Attempt) -> bool:
        return attempt in self.watch.cancels

    def _after(self) -> None:
        self.watch.after(self.now)
        while self._refill and self.watch.asked:
            self.serve(next(iter(self.watch.asked)))
