"""What a simulation is played on, whoever drives it: servers, the sources that stand for them, time, and what is noted on the way."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from random import Random

from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.request import Attempt, BatchFeed, Task
from qreward.scheduler.scheduler import SEND, Command, Scheduler
from qreward.settings.policies import Hedge, Retry
from simulation.agenda import Agenda
from simulation.doors import Job
from simulation.server import Report, Server
from simulation.specs import Spec

MOST_WATCHED = 64
"""Sources up to which all are looked at after each tick."""


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


class Stage:
    """Servers, their sources, and time.

    Attributes:
        over_limit: most that a source ever had in flight beyond its window.
        lost_sight: (when, source) of each time that a source was taken out of service.
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
        """The one that is looked at."""
        return Watched(self, retry or Retry(), self.rng, _estimate, Hedge())

    def every(self, seconds: float, what: Callable[[], None]) -> None:
        """Let something happen now and again every so many seconds."""

        def again(_: object) -> None:
            what()
            self.agenda.at(self.agenda.now + seconds, again)

        self.agenda.at(self.agenda.now, again)

    def _server(self, spec: Spec, report: Report) -> Server:
        """One more server."""
        server = Server(self.agenda, spec, Random(f"{self._seed}: s{len(self.servers)}"), report)
        self.servers.append(server)
        return server


class Watched(Scheduler):
    """The scheduler. After each call it is seen what it has sent, for by the next call windows may have moved."""

    def __init__(self, stage: Stage, retry: Retry, rng: Random, estimate: Callable[[Job], tuple[float, float]], hedge: Hedge) -> None:
        super().__init__(retry, rng, estimate, hedge)
        self._stage = stage

    def submit(self, now: float, task: Task) -> None:
        before = len(self.out)
        super().submit(now, task)
        self._inspect(self.out[before:])

    def refill(self, now: float, feed: BatchFeed) -> None:
        before = len(self.out)
        super().refill(now, feed)
        self._inspect(self.out[before:])

    def event(self, now: float, attempt: Attempt, outcome: Outcome) -> None:
        source, before = attempt.source, len(self.out)
        was = source.health.in_service
        super().event(now, attempt, outcome)
        self._inspect(self.out[before:])
        if was and not source.health.in_service:
            self._stage.lost_sight.append((now, source))

    def tick(self, now: float) -> None:
        stage, before = self._stage, len(self.out)
        was = [source for source in stage.sources if source.health.in_service] if len(stage.sources) <= MOST_WATCHED else []
        super().tick(now)
        stage.lost_sight += [(now, source) for source in was if not source.health.in_service]
        self._inspect(self.out[before:])

    def _inspect(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if command[0] == SEND:
                source = command[1].source
                if source.inflight > source.window.limit:
                    self._stage.over_limit = max(self._stage.over_limit, source.inflight - source.window.limit)


def _estimate(job: Job) -> tuple[float, float]:
    return float(job.prompt), 0.0
