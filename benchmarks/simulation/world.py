"""Drives the real scheduler: passes its commands to the servers and their outcomes back, and advances time from event to event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop
from itertools import islice
from math import inf
from random import Random

from qreward.scheduler.outcome import CANCELLED, Outcome
from qreward.scheduler.pool import BALANCERS, Pool
from qreward.scheduler.queue import Queue
from qreward.scheduler.scheduler import CANCEL, FINISH, SEND
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, Task
from qreward.settings.policies import LoadBalanceStrategy, Priority, Retry
from simulation.doors import Job
from simulation.server import Server
from simulation.specs import Spec
from simulation.stage import Ledger, Stage

CHUNK = 32
FIT = LoadBalanceStrategy.EXPECTED_FINISH


class Bulk(Ledger):
    """A batch, read as the scheduler requests it."""

    def __init__(self, jobs: Iterable[Job], pool: Pool, now: float, size: int | None = None) -> None:
        super().__init__()
        self.read = 0
        self.feed = BatchFeed(pool, Priority.NORMAL, self, now)
        self.feed.left = size
        self._jobs: Iterator[Job] = iter(jobs)

    def more(self) -> None:
        """Read the next ``CHUNK`` items."""
        feed, pool, first = self.feed, self.feed.pool, self.read
        tasks = [Task(job, pool, feed.level, None, self, first + place) for place, job in enumerate(islice(self._jobs, CHUNK))]
        self.read += len(tasks)
        feed.buffer.extend(tasks)
        feed.ended = len(tasks) < CHUNK

    @property
    def over(self) -> bool:
        """Whether all items are read and finished."""
        return self.feed.ended and self.ended == self.read


class World(Stage):
    """One scheduler, its servers, and time."""

    def __init__(self, seed: str, retry: Retry | None = None) -> None:
        super().__init__(seed)
        self._scheduler = self.scheduler(retry)
        self.pool = Pool("fleet", [], BALANCERS[FIT](), Queue())

    def add(self, spec: Spec, make: Callable[[str, Random, World], Source]) -> Server:
        """Add a server, and the source that ``make`` creates for it."""
        server = self._server(spec, self._report)
        source = make(f"s{len(self.sources)}", self.rng, self)
        source.endpoint = server
        self.sources.append(source)
        self._scheduler.join(self.agenda.now, source, self.pool)
        return server

    def bulk(self, jobs: Iterable[Job], size: int | None = None) -> Bulk:
        """Start a batch."""
        found = Bulk(jobs, self.pool, self.agenda.now, size)
        self._scheduler.open(self.agenda.now, found.feed)
        return found

    def submit(self, job: Job, ledger: Ledger, level: Priority, timeout: float | None = None) -> None:
        """Submit a single call."""
        self._scheduler.submit(self.agenda.now, Task(job, self.pool, level, timeout, ledger, 0))

    def run(self, until: float = inf, bulk: Bulk | None = None) -> None:
        """Run until a time, or until a batch is over.

        Raises:
            RuntimeError: no event is left, and the batch is not over.
        """
        agenda, heap, scheduler, next_wake = self.agenda, self.agenda.heap, self._scheduler, self._scheduler.next_wake
        while True:
            if scheduler.out:
                self._carry_out()
            if agenda.unsettled:
                agenda.settle()
            if bulk is not None and bulk.over:
                return
            wake = next_wake()
            if heap and (wake is None or heap[0][0] <= wake):
                if heap[0][0] > until:
                    break
                agenda.now, _, what, argument = heappop(heap)
                what(argument)
            elif wake is not None:
                if wake > until:
                    break
                agenda.now = max(agenda.now, wake)
                scheduler.tick(agenda.now)
            elif bulk is not None:
                raise RuntimeError(f"nothing is left to happen at {agenda.now} s")
            else:
                break
        agenda.now = until if until < inf else agenda.now

    def _carry_out(self) -> None:
        out, scheduler, now = self._scheduler.out, self._scheduler, self.agenda.now
        for command in out:  # the list grows during the loop
            kind = command[0]
            if kind == SEND:
                attempt = command[1]
                attempt.source.endpoint.receive(attempt)
            elif kind == FINISH:
                command[1].waiter.finished(now, command[1], command[2], command[4])
            elif kind == CANCEL:
                attempt = command[1]
                attempt.source.endpoint.stop(attempt)
                self._report(attempt, CANCELLED)
            else:
                command[1].waiter.more()
                scheduler.refill(now, command[1])
        out.clear()

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        self._scheduler.event(self.agenda.now, attempt, outcome)
