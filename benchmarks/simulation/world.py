"""Drives the real scheduler: carries its commands to the servers, their answers back, and time from event to event."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop
from itertools import islice
from math import inf
from random import Random

from qreward.core.balance import make_balancer
from qreward.core.commands import CANCEL, FINISH, SEND
from qreward.core.outcome import CANCELLED, Answer, Outcome
from qreward.core.pool import Pool
from qreward.core.scheduler import Scheduler
from qreward.core.source import Source
from qreward.core.task import Attempt, Feed, Task
from qreward.policies import Hedge, LoadBalanceStrategy, Priority, Retry
from simulation.agenda import Agenda
from simulation.doors import Job
from simulation.server import Server
from simulation.specs import Spec

CHUNK = 32
MOST_WATCHED = 64
"""Sources up to which all are looked at after each tick."""
FIT = LoadBalanceStrategy.EXPECTED_FINISH


class Ledger:
    """What became of the tasks of one caller.

    Args:
        whole: count a task's time from when it was submitted; else from when the attempt that answered was sent.

    Attributes:
        tokens: output tokens of all answers.
        latencies: seconds, one an answer.
        last, last_answer: when the last task ended, and when the last one was answered.
        longest: most seconds that a task took since it was submitted or read.
        failed: the tasks that ended without an answer.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole
        self.ended = 0
        self.tokens = 0.0
        self.latencies = array("d")
        self.last = self.last_answer = self.longest = 0.0
        self.failed: list[Task] = []

    def finished(self, now: float, task: Task, outcome: Outcome | Exception, seconds: float) -> None:
        self.ended += 1
        self.last = now
        self.longest = max(self.longest, now - task.born)
        if isinstance(outcome, Answer):
            self.last_answer = now
            self.tokens += task.payload.tokens
            self.latencies.append(now - task.born if self.whole else seconds)
        else:
            self.failed.append(task)


class Bulk(Ledger):
    """A bulk, read as the scheduler asks for it."""

    def __init__(self, jobs: Iterable[Job], pool: Pool, now: float, size: int | None = None) -> None:
        super().__init__()
        self.read = 0
        self.feed = Feed(pool, Priority.NORMAL, self, now)
        self.feed.left = size
        self._jobs: Iterator[Job] = iter(jobs)

    def more(self) -> None:
        """Read the next few."""
        feed, pool, first = self.feed, self.feed.pool, self.read
        tasks = [Task(job, pool, feed.level, None, self, first + place) for place, job in enumerate(islice(self._jobs, CHUNK))]
        self.read += len(tasks)
        feed.buffer.extend(tasks)
        feed.ended = len(tasks) < CHUNK

    @property
    def over(self) -> bool:
        """Whether all is read and done."""
        return self.feed.ended and self.ended == self.read


class World:
    """One scheduler, its servers, and time.

    Attributes:
        over_limit: most that a source ever had in flight beyond its window.
        lost_sight: (when, source) of each time that a source was taken out of service.
    """

    def __init__(self, seed: str, retry: Retry | None = None) -> None:
        self.agenda = Agenda()
        self.rng = Random(f"{seed}: scheduler")
        self.scheduler = Scheduler(retry or Retry(), self.rng, lambda job: (float(job.prompt), 0.0), Hedge())
        self.pool = Pool("fleet", [], make_balancer(FIT, {}, self.rng))
        self.sources: list[Source] = []
        self.servers: list[Server] = []
        self.over_limit = 0
        self.lost_sight: list[tuple[float, Source]] = []
        self._seed = seed
        self._inspected = 0

    def add(self, spec: Spec, make: Callable[[str, Random, World], Source]) -> Server:
        """A server, and the source that ``make`` makes for it."""
        name = f"s{len(self.sources)}"
        server = Server(self.agenda, spec, Random(f"{self._seed}: {name}"), self._report)
        source = make(name, self.rng, self)
        source.handle = server
        self.sources.append(source)
        self.servers.append(server)
        self.scheduler.join(self.agenda.now, source, self.pool)
        self.scheduler.resize(self.sources)
        return server

    def bulk(self, jobs: Iterable[Job], size: int | None = None) -> Bulk:
        """Begin a bulk."""
        found = Bulk(jobs, self.pool, self.agenda.now, size)
        self.scheduler.open(self.agenda.now, found.feed)
        return found

    def submit(self, job: Job, ledger: Ledger, level: Priority, timeout: float | None = None) -> None:
        """A single call."""
        self.scheduler.submit(self.agenda.now, Task(job, self.pool, level, timeout, ledger, 0))
        self._inspect()

    def every(self, seconds: float, what: Callable[[], None]) -> None:
        """Let something happen now and again every so many seconds."""

        def again(_: object) -> None:
            what()
            self.agenda.at(self.agenda.now + seconds, again)

        self.agenda.at(self.agenda.now, again)

    def run(self, until: float = inf, over: Callable[[], bool] | None = None) -> None:
        """Until a time, or until ``over()``, which is asked after each event.

        Raises:
            RuntimeError: nothing is left to happen, and it is not over.
        """
        agenda, heap, scheduler, next_wake = self.agenda, self.agenda.heap, self.scheduler, self.scheduler.next_wake
        while True:
            if scheduler.out:
                self._carry_out()
            if agenda.unsettled:
                agenda.settle()
            if over is not None and over():
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
                was = [source for source in self.sources if source.health.in_service] if len(self.sources) <= MOST_WATCHED else []
                scheduler.tick(agenda.now)
                self.lost_sight += [(agenda.now, source) for source in was if not source.health.in_service]
                self._inspect()
            elif over is not None:
                raise RuntimeError(f"nothing is left to happen at {agenda.now} s")
            else:
                break
        agenda.now = until if until < inf else agenda.now

    def _carry_out(self) -> None:
        out, scheduler, now = self.scheduler.out, self.scheduler, self.agenda.now
        for command in out:  # grows while it is read
            kind = command[0]
            if kind == SEND:
                attempt = command[1]
                attempt.source.handle.receive(attempt)
            elif kind == FINISH:
                command[1].sink.finished(now, command[1], command[2], command[4])
            elif kind == CANCEL:
                attempt = command[1]
                attempt.source.handle.stop(attempt)
                self._report(attempt, CANCELLED)
            else:
                command[1].sink.more()
                scheduler.refill(now, command[1])
                self._inspect()
        out.clear()
        self._inspected = 0

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        now, source = self.agenda.now, attempt.source
        was = source.health.in_service
        self.scheduler.event(now, attempt, outcome)
        self._inspect()
        if was and not source.health.in_service:
            self.lost_sight.append((now, source))

    def _inspect(self) -> None:
        """Look at what one call of the scheduler has sent: by the next call windows may have moved."""
        out = self.scheduler.out
        for command in out[self._inspected :]:
            if command[0] == SEND:
                source = command[1].source
                if source.inflight > source.window.limit:
                    self.over_limit = max(self.over_limit, source.inflight - source.window.limit)
        self._inspected = len(out)
