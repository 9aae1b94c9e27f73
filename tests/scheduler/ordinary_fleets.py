"""Simulates ordinary fleets on the scheduler alone, in virtual time: servers that slow with load, fail now and then, or have a small limit.

A fleet serves one batch, calls of which some run at once, or steps: batches of calls, one after the other. Only the scheduler runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import ceil, inf
from random import Random
from typing import Any

from qreward.errors import ConnectionFailed, RateLimited, ServerError
from qreward.scheduler.outcome import CANCELLED, Answer, Failure, FailureKind, Outcome
from qreward.scheduler.pool import ExpectedFinish, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.scheduler import CANCEL, FINISH, SEND, Scheduler
from qreward.scheduler.source import Source, make_source
from qreward.scheduler.task import Attempt, BatchFeed, Task
from qreward.settings.policies import Hedge, Limits, Priority, Retry

BROKE = Failure(FailureKind.TRANSIENT, ServerError("it broke", status_code=500))
RESET = Failure(FailureKind.TRANSIENT, ConnectionFailed("connection reset"))
REFUSED = Failure(FailureKind.UNREACHABLE, ConnectionFailed("connection refused"))
AWAY = Failure(FailureKind.OVERLOADED, RateLimited("overloaded", status_code=503))
CHUNK = 32


@dataclass
class Server:
    """A server. Times are in seconds.

    Args:
        base, per_token: seconds of an answer: ``base`` plus ``per_token`` for each token.
        slots: requests that it works on at once; further requests wait.
        load: share by which each request in work slows all of them.
        errors, error_after: share of requests that fail, and when.
        resets: share of requests whose connection is reset.
        hangs: share of requests that are never answered.
        cap: requests that it works on at once; further requests are rejected.
        rejects, hint: share of requests that are rejected, whatever the load, and the wait that each reject asks for.
        slow, slow_for: share of requests that take ``slow_for`` seconds longer.
        rpm: requests a minute (sliding window); further requests are rejected with a hint.
        wait_at: returns how long a request that arrives now has to wait, with which it is rejected; 0.0 if it is served.
        away: (period, seconds): it rejects everything for so long in each period.
        dead, broken: (from, to): it refuses connections, or resets them, between these times.
        known: the client knows ``rpm``.
    """

    base: float = 0.3
    per_token: float = 0.0
    slots: int = 10**9
    load: float = 0.0
    errors: float = 0.0
    error_after: float = 0.05
    resets: float = 0.0
    hangs: float = 0.0
    cap: int = 10**9
    rejects: float = 0.0
    hint: float | None = None
    slow: float = 0.0
    slow_for: float = 12.0
    rpm: int | None = None
    wait_at: Callable[[float], float] | None = None
    away: tuple[float, float] | None = None
    dead: tuple[float, float] = (inf, inf)
    broken: tuple[float, float] = (inf, inf)
    known: bool = False
    served: int = 0
    active: int = 0
    waiting: list[Attempt] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    def wait(self, now: float) -> float:
        """Return the wait with which a request that arrives now is rejected because of a rate limit; 0.0 if it is not."""
        if self.wait_at is not None:
            return self.wait_at(now)
        if self.rpm is None:
            return 0.0
        self.starts = [start for start in self.starts if now - start < 60]
        if len(self.starts) >= self.rpm:
            return float(ceil(60 - (now - self.starts[0])))
        self.starts.append(now)
        return 0.0

    def limits(self) -> Limits:
        return Limits(rpm=self.rpm) if self.known else Limits()


class Fleet:
    """One scheduler and its servers."""

    def __init__(self, servers: Sequence[Server], seed: int, retry: Retry | None = None) -> None:
        self.rng, self.now, self.servers = Random(seed), 0.0, servers
        self.scheduler = Scheduler(retry or Retry(), Random(seed + 1), lambda _: (10.0, 2000.0), Hedge())
        self.pool = Pool("fleet", [], ExpectedFinish(), Queue())
        self.sources: list[Source] = []
        for place, server in enumerate(servers):
            source = make_source(f"e{place}", Random(seed + 3 + place), server.limits())
            source.endpoint = server
            self.sources.append(source)
            self.scheduler.join(0.0, source, self.pool)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._running: set[Attempt] = set()
        self._again: Callable[[], None] = lambda: None  # called after a single call has ended
        self._input: Iterator[tuple[int, int]] = iter(())
        self.latencies: list[float] = []
        self.downs: list[str] = []  # the sources that went out of service
        self.lost = self.ended = 0

    # how work arrives

    def batch(self, sizes: Sequence[int], timeout: float = 60.0, until: float = 1e4) -> float:
        """Run one batch, and return when it ended."""
        self._input = iter(enumerate(sizes))
        feed = BatchFeed(self.pool, Priority.NORMAL, self, 0.0, timeout=timeout)
        feed.left = len(sizes)
        self.scheduler.open(self.now, feed)
        self._run(self.ended + len(sizes), until)
        return self.now

    def calls(self, sizes: Sequence[int], at_once: int, timeout: float = 60.0, until: float = 1e4) -> float:
        """Run single calls, ``at_once`` of them at a time, and return when the last one ended."""
        todo = iter(sizes)

        def start() -> None:
            for size in islice(todo, 1):
                self.scheduler.submit(self.now, Task(size, self.pool, Priority.NORMAL, timeout, self, 0))

        self._again = start
        goal = self.ended + len(sizes)
        for _ in range(at_once):
            start()
        self._run(goal, until)
        self._again = lambda: None
        return self.now

    def steps(self, sizes: Sequence[int], each: int = 24) -> float:
        """Run single calls in steps of ``each`` calls at once."""
        for first in range(0, len(sizes), each):
            self.calls(sizes[first : first + each], each)
        return self.now

    # the simulation

    def _run(self, goal: int, until: float) -> None:
        scheduler = self.scheduler
        while True:
            self._carry_out()
            if self.ended >= goal or self.now > until:
                return
            wake = scheduler.next_wake()
            at = self._heap[0][0] if self._heap else inf
            if wake is not None and wake < at:
                self.now = max(self.now, wake)
                scheduler.tick(self.now)
            else:
                assert at < inf, "nothing is left to happen"
                self.now, _, what = heapq.heappop(self._heap)
                what()

    def _carry_out(self) -> None:
        scheduler = self.scheduler
        while scheduler.out:
            out, scheduler.out = scheduler.out, []
            for command in out:
                if command[0] == SEND:
                    self._receive(command[1])
                elif command[0] == CANCEL:
                    self._report(command[1], CANCELLED)
                elif command[0] == FINISH:
                    self._finished(command[1], command[2])
                else:
                    self._read(command[1])
        self.downs += [change.source for change in scheduler.health_changes if change.reason]
        scheduler.health_changes.clear()

    def _read(self, feed: BatchFeed) -> None:
        tasks = [Task(size, self.pool, feed.level, feed.timeout, self, index) for index, size in islice(self._input, CHUNK)]
        feed.buffer.extend(tasks)
        feed.ended = len(tasks) < CHUNK
        self.scheduler.refill(self.now, feed)

    def _finished(self, task: Task, outcome: Any) -> None:
        self.ended += 1
        self.lost += not isinstance(outcome, Answer)
        self.latencies.append(self.now - task.born)
        if task.feed is None:
            self._again()

    def _at(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), what))

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        if attempt in self._running:
            self._running.remove(attempt)
            server: Server = attempt.source.endpoint  # type: ignore[assignment]
            if attempt in server.waiting:
                server.waiting.remove(attempt)
            elif attempt.handle is not None:
                self._leave(server)
            self.scheduler.event(self.now, attempt, outcome)

    def _leave(self, server: Server) -> None:
        server.active -= 1
        if server.waiting:
            self._work(server.waiting.pop(0))

    def _receive(self, attempt: Attempt) -> None:
        self._running.add(attempt)
        server: Server = attempt.source.endpoint  # type: ignore[assignment]
        attempt.handle = None
        if wait := server.wait(self.now):
            limited = Failure(FailureKind.OVERLOADED, RateLimited("slower", status_code=429), retry_after=wait)
            self._at(0.002, lambda: self._report(attempt, limited))
        elif server.away is not None and self.now > 1 and self.now % server.away[0] < server.away[1]:
            self._at(0.002, lambda: self._report(attempt, AWAY))
        elif server.active >= server.cap or (server.rejects and self.rng.random() < server.rejects):
            random = Failure(FailureKind.OVERLOADED, RateLimited("busy", status_code=429), retry_after=server.hint)
            self._at(0.002, lambda: self._report(attempt, random))
        elif server.dead[0] <= self.now < server.dead[1]:
            self._at(0.001, lambda: self._report(attempt, REFUSED))
        elif self.rng.random() < server.errors:
            self._at(server.error_after, lambda: self._report(attempt, BROKE))
        elif server.broken[0] <= self.now < server.broken[1] or self.rng.random() < server.resets:
            self._at(0.001, lambda: self._report(attempt, RESET))
        elif server.hangs and self.rng.random() < server.hangs:
            pass  # it is neither answered nor rejected
        elif server.active < server.slots:
            self._work(attempt)
        else:
            server.waiting.append(attempt)

    def _work(self, attempt: Attempt) -> None:
        server: Server = attempt.source.endpoint  # type: ignore[assignment]
        server.active += 1
        attempt.handle = server
        tokens = attempt.task.payload
        seconds = (server.base + server.per_token * tokens * self.rng.uniform(0.5, 1.5)) * (1 + server.load * server.active)
        if self.rng.random() < server.slow:
            seconds += server.slow_for

        def done() -> None:
            if attempt in self._running:
                server.served += 1
                self._report(attempt, Answer(None, 10, tokens))

        self._at(seconds, done)


def lengths(seed: int, number: int, mean: float = 4.2, sigma: float = 1.0) -> list[int]:
    """Return lognormal output lengths, at most 2,000 tokens."""
    rng = Random(seed)
    return [int(min(2000, max(4, rng.lognormvariate(mean, sigma)))) for _ in range(number)]
