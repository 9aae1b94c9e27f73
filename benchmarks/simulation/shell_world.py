"""Drives the whole engine, with its batches and single calls, in virtual time. The simulated servers are behind its HTTP backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import Any

from qreward.engine import batch as bulk
from qreward.engine.batch import ResultSettings
from qreward.engine.driver import Engine, Single
from qreward.engine.fleet import AddressLists, Fleet
from qreward.errors import QRewardError
from qreward.scheduler.outcome import Answer, Failure, Outcome
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.source import Source
from qreward.scheduler.task import RequestOptions, Task
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint, Limits, Priority
from qreward.testing.virtual_time import run_in_virtual_time
from simulation.doors import Job
from simulation.pump import Pump
from simulation.server import Server
from simulation.specs import Spec
from simulation.stage import Ledger, Stage

MODEL = "model"


class Input(Ledger):
    """The input of a batch, read by the engine during the run."""

    def __init__(self, jobs: Iterable[Job], size: int) -> None:
        super().__init__()
        self._jobs, self._size = jobs, size

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return self._size


class ShellWorld(Stage):
    """One engine in one event loop, and its servers.

    Args:
        seed: seed of all randomness.
        limits: limits of each server that are configured in the client.
    """

    def __init__(self, seed: str, limits: Limits | None = None) -> None:
        super().__init__(seed)
        self._limits = limits or Limits()
        self._calls: list[asyncio.Task[None]] = []

    def add(self, spec: Spec, _make: object = None) -> Server:
        """Add a server. Its source is created by the engine's fleet."""
        return self._server(spec, _answer)

    def bulk(self, jobs: Iterable[Job], size: int) -> Input:
        """Prepare a batch for ``run``."""
        return Input(jobs, size)

    def submit(self, job: Job, ledger: Ledger, level: Priority) -> None:
        """Make a single call in a task of its own, during ``run``."""
        self._calls.append(asyncio.ensure_future(self._call(job, ledger, level)))

    def run(self, until: float, bulk: Input) -> None:
        """Run until a batch is over, or until a time, then close the engine.

        Raises:
            Deadlock: the engine waits for an event that cannot happen.
            AssertionError, RuntimeError: the engine left a task, a timer, a slot or a request behind, or reported more or fewer
                results than there are items.
        """
        run_in_virtual_time(self._run(until, bulk))

    async def _run(self, until: float, jobs: Input) -> None:
        loop = asyncio.get_running_loop()
        engine: Engine[Scheduler] = Engine(self.scheduler(), lambda: Wire(self), clock=loop.time)
        self._engine = engine
        config = ClientConfig(endpoints=tuple(map(self._endpoint, range(len(self.servers)))), prefix_affinity=None)
        self._fleet = Fleet(engine, config, AddressLists(lambda: None))
        self.sources += self._fleet.sources()
        pump = self.pump = Pump(self.agenda, loop)
        pump.enter()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(until if until < inf else None):
                    await self._play(jobs)
            await self._hang_up()
            await engine.aclose()
        finally:
            pump.close()
        self._check()

    def _endpoint(self, place: int) -> Endpoint:
        return Endpoint(f"http://s{place}.example/v1", name=f"s{place}", limits=self._limits)

    async def _play(self, jobs: Input) -> None:
        told = 0

        def count(_: object) -> None:
            nonlocal told
            told += 1

        pool, options = self._fleet.pool(MODEL), RequestOptions(Priority.NORMAL)
        sink = Bulk(self._engine.driver(), pool, jobs, _as_it_is, options, ResultSettings(on_result=count, keep=False))
        sink.ledger = jobs
        stats = (await sink.run()).stats
        if not stats.items == stats.ok + stats.failed == told == jobs.ended:
            raise RuntimeError(f"{stats.items} items were read, {jobs.ended} ended, {told} were told, {stats.ok + stats.failed} counted")

    async def _call(self, job: Job, ledger: Ledger, level: Priority) -> None:
        sink = Single(self._engine.driver())
        task = RequestOptions(level).task(job, self._fleet.pool(MODEL), sink, 0)
        result = await sink.result(task)
        ledger.finished(self._engine.clock(), task, result.error or Answer(None), result.latency)

    async def _hang_up(self) -> None:
        """Cancel the single calls that are not done. Raises the exception of one that failed."""
        for call in self._calls:
            call.cancel()
        for end in await asyncio.gather(*self._calls, return_exceptions=True):
            if isinstance(end, Exception):  # CancelledError is not an Exception
                raise end

    def _check(self) -> None:
        """Check that the closed engine and the servers hold no slots, requests or queued tasks."""
        slots, held = sum(source.inflight for source in self.sources), sum(len(server.held) for server in self.servers)
        queued = len(self._fleet.pool(MODEL).queue)
        if slots or held or queued:
            raise RuntimeError(f"left behind: {slots} slots, {held} requests at servers, {queued} tasks in the queue")


class Bulk(bulk.BatchWaiter):
    """The engine's ``BatchWaiter``, which also records its tasks in a ledger."""

    ledger: Ledger

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self.ledger.finished(self.driver.engine.clock(), task, outcome, seconds)
        super().finish(task, outcome, source, seconds)


class Request:
    """Stands in for an attempt: the attributes that a server uses, and the future of the caller that waits for the outcome."""

    __slots__ = ("end", "payload")

    def __init__(self, job: Job, end: asyncio.Future[Answer | Failure]) -> None:
        self.payload = job
        self.end = end

    @property
    def task(self) -> Request:
        return self


class Wire:
    """An HTTP backend that finds servers by the names of their endpoints. A cancelled request counts as a closed connection."""

    def __init__(self, world: ShellWorld) -> None:
        self._pump, self._loop = world.pump, asyncio.get_running_loop()
        self._servers = {f"s{place}": server for place, server in enumerate(world.servers)}

    async def send(self, endpoint: Endpoint, job: Job) -> Answer | Failure:
        request: Any = Request(job, self._loop.create_future())
        server = self._servers[endpoint.name]
        self._pump.enter()
        server.receive(request)
        try:
            end: Answer | Failure = await request.end
        except BaseException:
            self._pump.enter()
            server.stop(request)
            raise
        return end

    async def aclose(self) -> None:
        pass


def _answer(request: Any, outcome: Outcome) -> None:
    if not request.end.done():  # else the caller was cancelled
        request.end.set_result(outcome)


def _as_it_is(job: Job) -> Job:
    return job
