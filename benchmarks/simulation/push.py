"""A typical hand-written client: it assigns a request to the endpoint with the fewest requests, waits for a semaphore, sends, and retries.

An assigned request never moves to another endpoint. A rejected request keeps its slot of the semaphore during the back-off. The back-off is
that of the openai SDK (0.5 s, doubled up to 8 s, minus up to a random quarter; or ``Retry-After`` if it is at most a minute). The timeout
of an attempt is also that of the SDK, 600 s. The client retries ten times. With the two retries of the SDK it would lose most of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from random import Random
from typing import Any

from qreward.errors import RequestTimeout
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, Task
from qreward.settings.policies import Priority
from simulation.doors import Job
from simulation.server import Server
from simulation.specs import Spec
from simulation.stage import Ledger, Stage

FIRST, MOST, LESS, HEEDED = 0.5, 8.0, 0.25, 60.0
"""``FIRST``, ``MOST``: seconds of the first and of the longest back-off. ``LESS``: its random share. ``HEEDED``: longest ``Retry-After`` in
seconds that is used."""
RETRIES = 10
TIMEOUT = 600.0
GIVEN_UP = Failure(FailureKind.TIMEOUT, RequestTimeout("no answer in 600 s"))


class Pushed(Ledger):
    """A batch whose requests are all assigned at once."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @property
    def over(self) -> bool:
        return self.ended == self.size


class PushWorld(Stage):
    """Servers with a queue and a semaphore each."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self._pool: Any = Pool("push", [], None, Queue())  # type: ignore[arg-type]  # tasks need a pool; it has no balancer
        self._servers: dict[Source, Server] = {}
        self._waiting: dict[Source, deque[Task]] = {}
        self._given: dict[Source, int] = {}

    def add(self, spec: Spec, make: Callable[[str, Random, Any], Source]) -> Server:
        """Add a server. Only the limit of the source from ``make`` is used."""
        server = self._server(spec, self._report)
        source = make(f"s{len(self.sources)}", self.rng, self)
        self._servers[source] = server
        self.sources.append(source)
        self._waiting[source], self._given[source] = deque(), 0
        return server

    def bulk(self, jobs: Iterable[Job], size: int) -> Pushed:
        """Assign all jobs to endpoints."""
        found = Pushed(size)
        for index, job in enumerate(jobs):
            self._give(Task(job, self._pool, Priority.NORMAL, None, found, index))
        return found

    def submit(self, job: Job, ledger: Ledger, level: Priority, timeout: float | None = None) -> None:
        """Assign a single call, which waits behind all earlier requests."""
        self._give(Task(job, self._pool, level, timeout, ledger, 0))

    def run(self, until: float = inf, bulk: Pushed | None = None) -> None:
        """Run until a time, or until a batch is over."""
        self.agenda.run(lambda: bulk is not None and bulk.over, until)

    def _give(self, task: Task) -> None:
        source = min(self.sources, key=self._given.__getitem__)
        task.born = self.agenda.now
        self._given[source] += 1
        self._waiting[source].append(task)
        self._next(source)

    def _next(self, source: Source) -> None:
        waiting = self._waiting[source]
        while waiting and source.inflight < source.window.limit:
            source.inflight += 1
            self._send((source, waiting.popleft()))

    def _send(self, where: tuple[Source, Task]) -> None:
        source, task = where
        attempt = task.attempt = Attempt(task, source, self.agenda.now)
        source.tally.sent += 1
        self.agenda.at(self.agenda.now + TIMEOUT, self._expire, attempt)
        self._servers[source].receive(attempt)

    def _expire(self, attempt: Attempt) -> None:
        if not attempt.ended:
            self._servers[attempt.source].stop(attempt)
            self._report(attempt, GIVEN_UP)

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        if attempt.ended:
            return
        attempt.ended = True
        source, task, now = attempt.source, attempt.task, self.agenda.now
        if isinstance(outcome, Failure):
            source.tally.rejected += outcome.kind is FailureKind.OVERLOADED
            task.tries += 1
            if task.tries <= RETRIES:
                self.agenda.at(now + self._back_off(task.tries, outcome.retry_after), self._send, (source, task))
                return
        source.inflight -= 1
        self._given[source] -= 1
        task.waiter.finished(now, task, outcome if isinstance(outcome, Answer) else GIVEN_UP.error, now - attempt.sent_at)
        self._next(source)

    def _back_off(self, tries: int, hint: float | None) -> float:
        if hint is not None and 0 < hint <= HEEDED:
            return hint
        return min(MOST, FIRST * 2.0 ** (tries - 1)) * (1 - LESS * self.rng.random())
