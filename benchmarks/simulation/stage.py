"""The common part of all simulations: servers, their sources, time, and the recorded results."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from random import Random

from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.scheduler import SEND, Command, Scheduler
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, BatchFeed, Task
from qreward.settings.policies import Hedge, Retry
from simulation.agenda import Agenda
from simulation.doors import Job
from simulation.server import Report, Server
from simulation.specs import Spec

MOST_WATCHED = 64
"""Largest number of sources with which all sources are inspected after each tick."""


class Ledger:
    """The results of the tasks of one caller.

    Args:
        whole: measure the latency of a task from its submission; else from the start of the successful attempt.

    Attributes:
        ended: number of tasks that ended.
        tokens: output tokens of all answers.
        latencies: latency of each answer in seconds.
        last, last_answer: time of the end of the last task, and of the last answer.
        longest: longest time of a task in seconds since it was submitted or read.
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


class Stage:
    """Servers, their sources, and time.

    Attributes:
        over_limit: most requests that a source ever had in flight beyond its limit.
        lost_sight: (time, source) of each removal of a source from service.
    """

    def __init__(self, seed: str) -> None:
        self.agenda = Agenda()
        self.rng = Random(f"{seed}: scheduler")
        self.sources: list[Source] = []
        self.servers: list[Server] = []
        self.over_limit = 0
        self.lost_sight: list[tuple[float, Source]] = []
        self._seed = seed

    def scheduler(self, retry: Retry | None = None) -> Watched:
        """Return a scheduler that is observed."""
        return Watched(self, retry or Retry(), self.rng, _estimate, Hedge())

    def every(self, seconds: float, what: Callable[[], None]) -> None:
        """Call ``what`` at once, and then at intervals of ``seconds``."""

        def again(_: object) -> None:
            what()
            self.agenda.at(self.agenda.now + seconds, again)

        self.agenda.at(self.agenda.now, again)

    def _server(self, spec: Spec, report: Report) -> Server:
        """Add a server."""
        server = Server(self.agenda, spec, Random(f"{self._seed}: s{len(self.servers)}"), report)
        self.servers.append(server)
        return server


class Watched(Scheduler):
    """The scheduler, with an inspection of the attempts sent after each call, since the limits may change in the next call."""

    def __init__(self, stage: Stage, retry: Retry, rng: Random, estimate: Callable[[Job], tuple[float, float]], hedge: Hedge) -> None:
        super().__init__(retry, rng, estimate, hedge)
        self._stage = stage

    def submit(self, now: float, task: Task) -> None:
        before = len(self.out)
        super().submit(now, task)
        self._examine(self.out[before:])

    def refill(self, now: float, feed: BatchFeed, again: Sequence[Task] = ()) -> None:
        before = len(self.out)
        super().refill(now, feed, again)
        self._examine(self.out[before:])

    def event(self, now: float, attempt: Attempt, outcome: Outcome) -> None:
        source, before = attempt.source, len(self.out)
        was = source.health.in_service
        super().event(now, attempt, outcome)
        self._examine(self.out[before:])
        if was and not source.health.in_service:
            self._stage.lost_sight.append((now, source))

    def tick(self, now: float) -> None:
        stage, before = self._stage, len(self.out)
        was = [source for source in stage.sources if source.health.in_service] if len(stage.sources) <= MOST_WATCHED else []
        super().tick(now)
        stage.lost_sight += [(now, source) for source in was if not source.health.in_service]
        self._examine(self.out[before:])

    def _examine(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if command[0] == SEND:
                source = command[1].source
                if source.inflight > source.window.limit:
                    self._stage.over_limit = max(self._stage.over_limit, source.inflight - source.window.limit)


def _estimate(job: Job) -> tuple[float, float]:
    return float(job.prompt), 0.0
