"""Batches on simulated model servers with prefix caches, in virtual time. The real scheduler or a router chooses the servers.

Every replica has at most ``WINDOW`` requests in flight on average. The scheduler keeps this limit for each replica, the clients of a router
for all replicas together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from fakes.model_server import ModelRequest, ModelServer, ServedModel
from prefix_routers import Chooser
from prefix_workloads import PrefixJob, ideal
from simulation.agenda import Agenda
from simulation.server import NOBODY, RESET, Report
from simulation.stage import Ledger
from simulation.world import Bulk, World

from qreward.scheduler.limits.concurrency import AdaptiveLimit, ConcurrencyLimit
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.pool import Pool
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source
from qreward.scheduler.task import READ_AHEAD, Attempt, Task
from qreward.settings.policies import Hedge, Retry

WINDOW = 64
PATIENCE = 3600.0
"""Maximum number of seconds of an attempt. It is never reached, because routers do not give up attempts either."""
Done = Callable[[Any, ModelRequest], None]


class Replica:
    """A model server on the agenda.

    Args:
        agenda: the event queue.
        name: its name.
        model: its speed and memory.
        done: called with the handle of each finished request, and the request.
    """

    def __init__(self, agenda: Agenda, name: str, model: ServedModel, done: Done) -> None:
        self.name, self.dead, self.inflight = name, False, 0
        self.server = ModelServer(model)
        self.held: dict[Any, ModelRequest] = {}
        self._agenda, self._done, self._due_at = agenda, done, inf

    @property
    def waiting(self) -> int:
        """Requests that are not admitted yet."""
        return len(self.server.waiting)

    @property
    def load(self) -> float:
        return self.server.load

    def submit(self, handle: Any, job: PrefixJob) -> None:
        request = self.held[handle] = job.request(handle)
        self.inflight += 1
        self.server.submit(self._agenda.now, request)
        self._agenda.unsettled.append(self)

    def cancel(self, handle: Any) -> None:
        """Drop a request if the replica holds it."""
        if (request := self.held.pop(handle, None)) is not None:
            self.inflight -= 1
            self.server.cancel(self._agenda.now, request)
            self._agenda.unsettled.append(self)

    def die(self) -> list[Any]:
        """Drop all requests, now and in future. Returns the handles of those that were held."""
        self.dead, lost = True, list(self.held)
        for handle in lost:
            self.cancel(handle)
        return lost

    def settle(self) -> None:
        """Begin a step if none is under way, and wait for its end."""
        server, now = self.server, self._agenda.now
        if server.next_at == inf:
            server.run(now)
        if server.next_at != self._due_at:
            self._due_at = server.next_at
            if self._due_at < inf:
                self._agenda.at(self._due_at, self._due, self._due_at)

    def _due(self, at: float) -> None:
        if at != self._due_at:
            return  # the plan has changed
        self._due_at = inf
        for request in self.server.run(self._agenda.now):
            del self.held[request.handle]
            self.inflight -= 1
            self._done(request.handle, request)
        self.settle()


class ReplicaServer:
    """A replica as a server of the simulation of the scheduler. ``sent`` collects the indices of the tasks that it is the first to get."""

    def __init__(self, agenda: Agenda, name: str, model: ServedModel, report: Report, sent: list[int]) -> None:
        self.replica = Replica(agenda, name, model, self._finished)
        self._agenda, self._report, self._sent = agenda, report, sent

    def receive(self, attempt: Attempt) -> None:
        if attempt.number == 1:
            self._sent.append(attempt.task.index)
        if self.replica.dead:
            self._agenda.at(self._agenda.now, self._refuse, attempt)
        else:
            self.replica.submit(attempt, attempt.task.payload)

    def stop(self, attempt: Attempt) -> None:
        self.replica.cancel(attempt)

    def die(self) -> None:
        """Reset all connections, and refuse new ones."""
        for attempt in self.replica.die():
            self._report(attempt, RESET)

    def _refuse(self, attempt: Attempt) -> None:
        self._report(attempt, NOBODY)

    def _finished(self, attempt: Attempt, request: ModelRequest) -> None:
        self._report(attempt, Answer(None, request.prompt, request.output, None, request.cached))


@dataclass(frozen=True)
class Pull:
    """How the scheduler is used.

    Attributes:
        prefix: what a task knows of its prefix; None for no affinity.
        look_ahead: requests among which affinity chooses; None for the default.
        calls: all requests are single calls that wait at once, instead of a batch.
        window: requests in flight per replica; None lets the scheduler learn it.
        hedge: slow requests may be sent twice.
    """

    prefix: Callable[[PrefixJob], Prefix] | None = None
    look_ahead: int | None = None
    calls: bool = False
    window: int | None = WINDOW
    hedge: bool = False


class AheadBulk(Bulk):
    """A batch that is read ahead as far as its pool says, and whose tasks know their prefixes."""

    def __init__(self, jobs: Sequence[PrefixJob], pool: Pool, prefix: Callable[[PrefixJob], Prefix] | None) -> None:
        super().__init__(jobs, pool, 0.0, len(jobs))
        self._size, self._prefix = len(jobs), prefix
        if prefix is not None:
            self.feed.read_ahead = max(READ_AHEAD, pool.look_ahead)
        self.on_ended: Callable[[], None] = lambda: None

    @property
    def over(self) -> bool:
        return self.ended == self._size

    def next(self) -> Task | None:
        """Return the task of the next job, or None."""
        for job in self._jobs:
            task = Task(job, self.feed.pool, self.feed.level, None, self, self.read)
            task.prefix = None if self._prefix is None else self._prefix(job)  # type: ignore[arg-type]
            self.read += 1
            return task
        return None

    def more(self) -> None:
        feed = self.feed
        for _ in range(feed.read_ahead - len(feed.buffer)):
            task = self.next()
            if task is None:
                feed.ended = True
                return
            feed.buffer.append(task)

    def finished(self, now: float, task: Task, outcome: Outcome | Exception, seconds: float) -> None:
        super().finished(now, task, outcome, seconds)
        self.on_ended()


class PulledWorld(World):
    """Runs the real scheduler in front of replicas.

    Attributes:
        sent: the place of each request in the input, in the order in which the requests were first sent.
    """

    def __init__(self, seed: str, models: Sequence[ServedModel], pull: Pull) -> None:
        super().__init__(seed)
        self._pull = pull
        if pull.look_ahead is not None:
            self.pool.set_look_ahead(pull.look_ahead)
        self._scheduler = Scheduler(Retry(), self.rng, None, Hedge() if pull.hedge else None)  # type: ignore[assignment]
        self.replicas: list[Replica] = []
        self.sent: list[int] = []
        for number, model in enumerate(models):
            self._join(f"replica {number}", model)

    def _join(self, name: str, model: ServedModel) -> None:
        server = ReplicaServer(self.agenda, name, model, self._report, self.sent)
        window = ConcurrencyLimit(self._pull.window) if self._pull.window else AdaptiveLimit(self.rng, None)
        source = Source(name, self.rng, attempt_timeout=PATIENCE, window=window)
        source.endpoint = server
        self.replicas.append(server.replica)
        self.sources.append(source)
        self._scheduler.join(self.agenda.now, source, self.pool)

    def play(self, jobs: Sequence[PrefixJob], dies_after: int | None) -> Ledger:
        """Run a batch. After so many answers the first replica dies."""
        bulk = AheadBulk(jobs, self.pool, self._pull.prefix)

        def ended() -> None:
            if bulk.ended == dies_after:
                self.agenda.at(self.agenda.now, lambda _: self.sources[0].endpoint.die())  # type: ignore[attr-defined]

        bulk.on_ended = ended
        if self._pull.calls:
            while (task := bulk.next()) is not None:
                self._scheduler.submit(self.agenda.now, task)
        else:
            self._scheduler.open(self.agenda.now, bulk.feed)
        self.run(bulk=bulk)
        return bulk


class RoutedWorld:
    """Runs a router in front of replicas. Its clients together have ``WINDOW`` requests in flight for each replica."""

    def __init__(self, models: Sequence[ServedModel], choose: Chooser) -> None:
        self.agenda = Agenda()
        self.replicas = [Replica(self.agenda, f"replica {number}", model, self._done) for number, model in enumerate(models)]
        self._choose = choose
        self._under_way = 0
        self.ledger = Ledger()

    def play(self, jobs: Sequence[PrefixJob], dies_after: int | None) -> Ledger:
        """Run a batch. After so many answers the first replica dies, and its requests go to others."""
        self._waiting, self._dies_after = deque(jobs), dies_after
        self._feed()
        self.agenda.run(lambda: self.ledger.ended == len(jobs))
        return self.ledger

    def _feed(self) -> None:
        alive = [replica for replica in self.replicas if not replica.dead]
        while self._waiting and self._under_way < WINDOW * len(alive):
            job = self._waiting.popleft()
            self._under_way += 1
            self._choose(job, alive).submit(job, job)  # type: ignore[attr-defined]

    def _done(self, *_: object) -> None:
        self._under_way -= 1
        self.ledger.ended += 1
        self.ledger.last = self.agenda.now
        if self.ledger.ended == self._dies_after:
            self.agenda.at(self.agenda.now, self._die)
        self._feed()

    def _die(self, _: None) -> None:
        lost = self.replicas[0].die()
        self._under_way -= len(lost)
        self._waiting.extendleft(reversed(lost))
        self._feed()


@dataclass(frozen=True)
class Fleet:
    """Some replicas of a model.

    Attributes:
        name: its name for ``--fleets``.
        replicas: number of replicas.
        slow: factor on all times of the first replica.
        dies: the first replica dies when half of the batch is answered.
    """

    name: str
    replicas: int
    slow: float = 1.0
    dies: bool = False

    def models(self, model: ServedModel) -> list[ServedModel]:
        usual = [model] * (self.replicas - 1)
        return [model.model_copy(update={"time_scale": self.slow * model.time_scale}), *usual]


def bound(jobs: Sequence[PrefixJob], models: Sequence[ServedModel], window: int = WINDOW) -> float:
    """Return a lower bound in seconds on the makespan of a batch. The replicas have one model and may differ in speed.

    The bound is the larger of two values. The first is the time of the whole work, divided among the replicas by their speeds: each
    distinct prefix is computed once, each output token is computed, and there are only as many steps as the token budget and ``window``
    requests at once require. The second is the time of the longest output alone on the fastest replica.
    """
    model, prefill = models[0], ideal(jobs)
    speed = sum(1 / each.time_scale for each in models)
    firsts, tokens = len(jobs), sum(int(job.tokens) for job in jobs)
    steps = max((prefill + tokens - firsts) / model.budget, (tokens - firsts) / window)
    work = model.step * steps + model.prefill * prefill + model.decode * (tokens - firsts)
    longest = max((job.tokens - 1) * (model.step + model.decode) for job in jobs)
    return max(work / speed, longest * min(each.time_scale for each in models))


FLEETS = (Fleet("4", 4), Fleet("8", 8), Fleet("8-slow", 8, slow=2.0), Fleet("8-dies", 8, dies=True))
