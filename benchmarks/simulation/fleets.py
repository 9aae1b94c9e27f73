"""Runs a batch on a whole fleet, and compares its makespan with the lower bound and other metrics with their targets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from qreward.settings.policies import Limits, Priority
from simulation.bounds import Work, lower_bound
from simulation.controllers import OURS, PUSH, controller
from simulation.doors import Job
from simulation.measure import quantile
from simulation.push import Pushed, PushWorld
from simulation.server import Server
from simulation.specs import DEFAULT_COLUMNS, Outputs, Spec
from simulation.stage import MOST_WATCHED, Ledger
from simulation.world import Bulk, World

if TYPE_CHECKING:
    from simulation.shell_world import Input, ShellWorld

ONLINE = Outputs(100.0)
LOOK = 1.0
"""Seconds between two recordings of the state of all servers."""
STUCK, STUCK_LEAST = 30.0, 1000.0
"""A run is stopped after ``STUCK`` times the lower bound plus ``STUCK_LEAST`` seconds. Requests not finished by then count as lost."""


@dataclass(frozen=True)
class Figure:
    """A metric of a scenario besides the makespan: its value and its ``target``, a maximum (with ``floor``, a minimum)."""

    name: str
    value: float
    target: float | None = None
    floor: bool = False

    @property
    def met(self) -> bool:
        """Whether the value meets the target, or there is none."""
        return self.target is None or (self.value >= self.target if self.floor else self.value <= self.target)


@dataclass(frozen=True)
class Scenario:
    """One fleet and one batch.

    Args:
        name: name of the scenario.
        title: its description in the table.
        items: number of requests of the batch.
        fleet: returns the servers, given the lower bound of the undisturbed fleet in seconds. Disturbances are timed in shares of it.
        limits: limits of each server that are configured in the client.
        outputs: output lengths of the batch.
        poison: one request in this many cannot be served by any server; 0 for none.
        online: single urgent calls per second beside the batch, with 100 tokens on average.
        figures: computes further metrics.
    """

    name: str
    title: str
    items: int
    fleet: Callable[[float], tuple[Spec, ...]]
    limits: Limits | None = None
    outputs: Outputs = DEFAULT_COLUMNS
    poison: int = 0
    online: float = 0.0
    figures: Callable[[Run], list[Figure]] | None = None


@dataclass
class Run:
    """A run of a scenario.

    Attributes:
        shell: whether the whole engine runs.
        undisturbed, bound: lower bounds in seconds, without and with the planned disturbances.
        useful, sent: at each whole second, the work done by each server and the requests sent to it so far.
    """

    scenario: Scenario
    controller: str
    seed: int
    shell: bool
    work: Work
    specs: tuple[Spec, ...]
    undisturbed: float
    bound: float
    world: World | ShellWorld | PushWorld
    bulk: Bulk | Input | Pushed = field(init=False)
    online: Ledger = field(init=False)
    useful: list[list[float]] = field(default_factory=list)
    sent: list[list[int]] = field(default_factory=list)
    wall: float = 0.0

    @classmethod
    def prepare(cls, scenario: Scenario, name: str, seed: int, *, shell: bool = False) -> Run:
        """Prepare a run without starting it. With ``shell``, the whole engine runs for ``ours``; others run on the scheduler alone."""
        label = f"{scenario.name}/{seed}"
        work = Work.of(jobs(scenario, label))
        undisturbed = lower_bound(scenario.fleet(float("inf")), work)
        specs = tuple(spec.drawn(Random(f"{label}: server {place}")) for place, spec in enumerate(scenario.fleet(undisturbed)))
        if shell and name == OURS:
            world: World | ShellWorld | PushWorld = _shell_world(label, scenario)
        else:
            world = PushWorld(label) if name == PUSH else World(label)
        return cls(scenario, name, seed, shell, work, specs, undisturbed, lower_bound(specs, work), world)

    @property
    def servers(self) -> list[Server]:
        return self.world.servers

    def play(self) -> Run:
        """Run the simulation."""
        scenario, world, began = self.scenario, self.world, time.perf_counter()
        mean = self.work.mean
        for spec in self.specs:
            world.add(spec, controller(self.controller, spec, mean, limits=scenario.limits))
        bulk: Any = world.bulk(jobs(scenario, f"{scenario.name}/{self.seed}"), scenario.items)
        self.bulk, self.online = bulk, Ledger(whole=True)
        world.every(LOOK, self._look)
        if scenario.online:
            self._call(Random(f"{scenario.name}/{self.seed}: online"))
        world.run(until=STUCK * self.bound + STUCK_LEAST, bulk=bulk)
        self.wall = time.perf_counter() - began
        return self

    def twin(self, **changes: Any) -> Run:
        """Repeat the run with another ``controller`` or another ``scenario``."""
        name, scenario = changes.get("controller", self.controller), changes.get("scenario", self.scenario)
        return Run.prepare(scenario, name, self.seed, shell=self.shell).play()

    def record(self) -> dict[str, Any]:
        """Return the results of the run; see the columns of the report."""
        world, items, tallies = self.world, self.scenario.items, [source.tally for source in self.world.sources]
        sent, rejected = sum(tally.sent for tally in tallies), sum(tally.rejected for tally in tallies)
        hopeless = sum(task.payload.poison > 0 for task in self.bulk.failed)
        figures = self.scenario.figures(self) if self.scenario.figures else []
        return {
            "scenario": self.scenario.name,
            "controller": self.controller,
            "seed": self.seed,
            "items": items,
            "makespan": self.bulk.last,
            "bound": self.bound,
            "ratio": self.bulk.last / self.bound,
            "extra": (sent - rejected - items - self.online.ended) / items,
            "rejects": rejected / sent,
            "over_limit": world.over_limit,
            "p99": quantile(self.bulk.latencies, 0.99),
            "lost": items - self.bulk.ended + len(self.bulk.failed) - hopeless + len(self.online.failed),
            "ended": self.bulk.ended,
            "wall": self.wall,
            "figures": {figure.name: [figure.value, figure.target, figure.met] for figure in figures},
        }

    def _look(self) -> None:
        if len(self.servers) <= MOST_WATCHED:
            self.useful.append([server.useful() for server in self.servers])
            self.sent.append([source.tally.sent for source in self.world.sources])

    def _call(self, rng: Random) -> None:
        calls, agenda = ONLINE.jobs(rng), self.world.agenda

        def call(_: object) -> None:
            self.world.submit(next(calls), self.online, Priority.HIGH)
            agenda.at(agenda.now + rng.expovariate(self.scenario.online), call)

        agenda.at(rng.expovariate(self.scenario.online), call)


def _shell_world(label: str, scenario: Scenario) -> ShellWorld:
    from simulation.shell_world import ShellWorld  # imported late: its imports would count in the measured memory

    return ShellWorld(label, scenario.limits)


def jobs(scenario: Scenario, label: str) -> Iterator[Job]:
    """Yield the requests of a batch, the same for each call."""
    found = islice(scenario.outputs.jobs(Random(f"{label}: jobs")), scenario.items)
    if not scenario.poison:
        return found
    return (_poisoned(job, index, scenario.poison) for index, job in enumerate(found))


def _poisoned(job: Job, index: int, every: int) -> Job:
    """Make one request in ``every`` fail or hang at any server; the first of them has an unreadable response instead."""
    if index % every == every // 2:
        job.poison = 1 if index >= every else 2
    return job
