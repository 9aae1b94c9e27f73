"""A discrete-event simulation of a fleet, a scheduler and its callers: everything follows from one seed.

Servers here have limits of which the scheduler may know nothing, faults, and times in which they are dead or overloaded.
All that the scheduler is told goes through ``Driver``, which checks every invariant after each input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from scheduler_driver import Driver, failure

from qreward.scheduler.outcome import CANCELLED, Answer, FailureKind, Outcome
from qreward.scheduler.task import Attempt, BatchFeed, Task

NEVER = (0.0, 0.0)
MOST_STEPS = 2_000_000


@dataclass
class Server:
    """What a source really is.

    Attributes:
        mean: seconds of an answer; ``spread`` is the sigma of its logarithm.
        cap: requests it works on at once; it answers more with 429.
        rate, burst: a bucket of requests a second; it answers more with 429 and ``Retry-After``.
        faults, hangs: share of requests that fail, and that are never answered.
        poison: indices of tasks that always fail here.
        dead: from, to: every request fails, by ``dead_kind``, after ``dead_after`` seconds; by default nobody is there.
        overloaded: from, to: everything is answered with 503.
    """

    mean: float = 1.0
    spread: float = 0.6
    cap: int | None = None
    rate: float | None = None
    burst: float = 10.0
    faults: float = 0.0
    hangs: float = 0.0
    poison: frozenset[int] = frozenset()
    dead: tuple[float, float] = NEVER
    dead_after: float = 0.005
    dead_kind: FailureKind = FailureKind.UNREACHABLE
    overloaded: tuple[float, float] = NEVER
    busy: int = 0
    level: float = 0.0
    then: float = 0.0

    def reply(self, now: float, index: int, rng: Random) -> tuple[float, Outcome] | None:
        """Seconds and outcome of a request that just came in, or None if there will be none."""
        if self.dead[0] <= now < self.dead[1]:
            return self.dead_after, failure(self.dead_kind)
        if self.overloaded[0] <= now < self.overloaded[1] or (self.cap is not None and self.busy > self.cap):
            return 0.03, failure(FailureKind.OVERLOADED)
        if self.rate is not None and (hint := self._hint(now, self.rate)) > 0:
            return 0.02, failure(FailureKind.OVERLOADED, retry_after=hint)
        chance = rng.random()
        if index in self.poison or chance < self.faults:
            return self.mean * rng.random(), failure(FailureKind.TRANSIENT)
        if chance < self.faults + self.hangs:
            return None
        return self.mean * rng.lognormvariate(0.0, self.spread), Answer("yes", 10, rng.randrange(1, 50))

    def _hint(self, now: float, rate: float) -> float:
        self.level = max(0.0, self.level - (now - self.then) * rate)
        self.then = now
        if self.level + 1 > self.burst:
            return (self.level + 1 - self.burst) / rate
        self.level += 1
        return 0.0


class Simulation:
    """Servers, what their callers do and when, and a clock that jumps from one planned event, or timer of the scheduler, to the next.

    Args:
        driver: holds a source for each server, of the same name.
        cancel_takes: longest time in seconds until a stopped attempt's connection is closed.
        dawdle: longest time in seconds by which the clock's owner may be late.
    """

    def __init__(self, driver: Driver, servers: dict[str, Server], rng: Random, *, cancel_takes: float = 0.02, dawdle: float = 0.0) -> None:
        self.driver = driver
        self.servers = servers
        self.rng = rng
        self.singles: list[Task] = []
        self._dawdle = dawdle
        self._cancel_takes = cancel_takes
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()
        self._seen = 0  # sends that servers know of
        self._stopping: set[Attempt] = set()

    def plan(self, when: float, what: Callable[[], object]) -> None:
        """Let something happen at a time."""
        heappush(self._agenda, (when, next(self._number), what))

    def run(self) -> None:
        """Until nothing is left to happen."""
        driver, scheduler = self.driver, self.driver.scheduler
        for _ in range(MOST_STEPS):
            self._listen()
            wake = scheduler.next_wake()
            if self._agenda and (wake is None or self._agenda[0][0] <= wake):
                when, _, what = heappop(self._agenda)
                driver.now = max(driver.now, when)
                what()
            elif wake is not None:
                driver.now = max(driver.now, wake + self.rng.random() * self._dawdle)
                driver.tick()
            else:
                driver.watch.check_all_over()
                return
        raise AssertionError(f"no end after {MOST_STEPS} steps, at {driver.now} s")

    # what will happen

    def submit_at(self, when: float, level: int = 5, timeout: float | None = None) -> None:
        """A single task, in any of the pools."""

        def submit() -> None:
            pools = list(dict.fromkeys(pool for source in self.driver.sources.values() for pool in source.pools))
            self.singles.append(self.driver.submit(level, timeout, self.rng.choice(pools)))

        self.plan(when, submit)

    def withdraw_some_at(self, when: float, share: float) -> None:
        """Callers of some open tasks lose interest."""
        self.plan(when, lambda: self.driver.withdraw(*[task for task in self.driver.watch.open if self.rng.random() < share]))

    def close_feed_at(self, when: float, feed: BatchFeed) -> None:
        """A bulk's caller loses interest in what has not been sent."""
        self.plan(when, lambda: self.driver.withdraw(*self.driver.close_feed(feed)))

    # the servers

    def _listen(self) -> None:
        watch = self.driver.watch
        while self._seen < len(watch.sends):
            self._receive(watch.sends[self._seen][1])
            self._seen += 1
        for attempt in watch.cancels:
            if attempt not in self._stopping:
                self._stopping.add(attempt)
                self.plan(self.driver.now + self.rng.random() * self._cancel_takes, partial(self._end, attempt, CANCELLED))

    def _receive(self, attempt: Attempt) -> None:
        server = self.servers[attempt.source.name]
        server.busy += 1
        reply = server.reply(self.driver.now, attempt.task.index, self.rng)
        if reply is not None:
            self.plan(self.driver.now + reply[0], partial(self._end, attempt, reply[1]))

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        """The first report counts; an answer that crosses our cancellation comes as a second one, and is to be ignored."""
        if not attempt.ended:
            self.servers[attempt.source.name].busy -= 1
        self.driver.end(attempt, outcome)
        self._stopping.discard(attempt)
