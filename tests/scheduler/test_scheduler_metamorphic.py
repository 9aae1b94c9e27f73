"""What must follow when a whole scene is changed: a source more, every time multiplied (P12). A failing seed is in the message.

Answers take as long as their own request says, whoever is asked and whenever, so that two scenes have the same work.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import cache
from math import log
from random import Random
from typing import Any

import pytest
from scheduler_driver import Driver, failure
from scheduler_seeds import seeds
from simulator import Server, Simulation

from qreward.scheduler.failure_policy import Budget
from qreward.scheduler.limits.concurrency import TUNING, AdaptiveLimit
from qreward.scheduler.limits.rate import BURST, Gcra, LearnedRate
from qreward.scheduler.outcome import Failure, Outcome
from qreward.scheduler.stats import FADE, Quantiles
from qreward.scheduler.timer_wheel import PER_SECOND
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy, Retry

FEW, MANY = seeds(2), seeds(4)


@dataclass
class Scaled(Server):
    """A server whose every time is ``factor`` times what is written, and whose answers depend on nothing but the request."""

    seed: int = 0
    factor: float = 1.0

    def reply(self, now: float, index: int, rng: Random) -> tuple[float, Outcome] | None:
        del rng
        reply = super().reply(now / self.factor, index, Random(self.seed * 1_000_003 + index))
        if reply is None:
            return None
        seconds, outcome = reply
        if isinstance(outcome, Failure) and outcome.retry_after is not None:
            outcome = failure(outcome.kind, retry_after=outcome.retry_after * self.factor)
        return seconds * self.factor, outcome


def ended(simulation: Simulation) -> float:
    """Play a scene; when the last caller had an answer."""
    simulation.run()
    return max(float(entry[0]) for entry in simulation.driver.watch.trace if entry[1] == "finish")


# a source more

MORE: dict[str, dict[str, Any]] = {
    "equal": {"mean": 0.5},
    "quick": {"mean": 0.05},
    "faulty": {"mean": 0.5, "faults": 0.15},
    "with a small cap": {"mean": 0.5, "cap": 3},
    "refusing": {"dead": (0.0, 1e9)},
}
SLOW: dict[str, dict[str, Any]] = {"four times slower": {"mean": 2.0}, "ten times slower": {"mean": 5.0}}


@cache
def makespan(added: str | None, seed: int, count: int) -> float:
    """Seconds of a bulk over three equal servers, and one more."""
    servers: dict[str, Server] = {f"s{number}": Scaled(mean=0.5, seed=seed) for number in range(3)}
    if added is not None:
        servers["more"] = Scaled(seed=seed, **(MORE | SLOW)[added])
    driver = Driver(seed=seed, hedge=Hedge(), thorough=False)
    for name in servers:
        driver.add(name, Limits(max_concurrency=16))
    driver.feed(count, told=True)
    return ended(Simulation(driver, servers, Random(seed)))


def changes(added: str, count: int, seeds: range) -> dict[int, float]:
    """For each seed, how many times as long it takes with a source more."""
    return {seed: makespan(added, seed, count) / makespan(None, seed, count) for seed in seeds}


@pytest.mark.parametrize("added", MORE)
def test_a_source_more_never_makes_a_bulk_take_longer(added: str) -> None:
    found = changes(added, 600, MANY)
    assert max(found.values()) <= 1.05, found


@pytest.mark.parametrize("added", SLOW)
def test_a_slow_source_more_makes_no_bulk_of_some_length_take_longer(added: str) -> None:
    """It takes a window full before anybody knows that it is slow. A single short bulk may then end with these: its mean counts."""
    long, short = changes(added, 3000, FEW), changes(added, 600, MANY)
    assert max(long.values()) <= 1.05, long
    assert sum(short.values()) / len(short) <= 1.05, short


# all times multiplied

IN_SECONDS: dict[str, tuple[str, ...]] = {
    "failure_policy": ("QUOTA_AWAY",),
    "scheduler": ("LOOK_LATER", "ONLINE", "STALLED"),
    "hedging": ("LOOK_LEAST", "LOOK_MOST", "LEAST_GAIN", "LEAST_SECONDS"),
    "health": ("FIRST_OPEN", "LONGEST_OPEN", "FIRST", "LONGEST"),
    "state": ("ATTEMPT_FIRST", "ATTEMPT_LEAST", "SOON", "REFRESH", "LONGEST"),
    "queue": ("BULK", "PATIENCE", "AGEING"),
    "stats": ("LEAST_SECONDS",),
}
"""Every constant of the scheduler that is a time, but for two modules: a rate is learned from hints second by second, and what endpoints
advertise are windows of usual seconds and minutes. Streams have times of their own, which are not played here."""


def quantiles(factor: float) -> type[Quantiles]:
    """Quantiles of times whose buckets begin at ``factor`` times the usual smallest one."""

    class Multiplied(Quantiles):
        @property
        def factor(self) -> float:
            return 1.0 if self.fade_after == FADE else factor  # those of output lengths hold no times

        def add(self, value: float) -> None:
            super().add(value / self.factor)

        def at(self, quantile: float) -> float | None:
            found = super().at(quantile)
            return None if found is None else found * self.factor

    return Multiplied


def multiply_constants(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    for module, names in IN_SECONDS.items():
        for name in names:
            place = importlib.import_module(f"qreward.scheduler.{module}")
            monkeypatch.setattr(place, name, getattr(place, name) * factor)
    for module in ("timer_wheel", "scheduler"):
        monkeypatch.setattr(importlib.import_module(f"qreward.scheduler.{module}"), "PER_SECOND", PER_SECOND / factor)
    adaptive = importlib.import_module("qreward.scheduler.limits.concurrency")
    monkeypatch.setattr(adaptive, "TUNING", replace(TUNING, hold=TUNING.hold * factor, settle=TUNING.settle * factor))
    monkeypatch.setattr(
        importlib.import_module("qreward.scheduler.load_balancing"), "log", lambda seconds: log(seconds / factor)
    )  # scores are rounded
    monkeypatch.setattr(importlib.import_module("qreward.scheduler.stats"), "Quantiles", quantiles(factor))
    monkeypatch.setattr(Gcra.__init__, "__defaults__", (BURST * factor,))
    monkeypatch.setattr(Budget, "TTL", Budget.TTL * factor)


def troubled(seed: int, factor: float) -> Simulation:
    """A fleet with faults, caps, rejects, outages and paces, single calls and bulks; every time is multiplied."""
    rng = Random(seed)
    retry = Retry(attempts=8, base=0.5 * factor, cap=8.0 * factor, budget_floor=10.0 / factor)
    hedge, by_speed = rng.choice([None, Hedge(), Hedge(after=1.0 * factor)]), LoadBalanceStrategy.EXPECTED_FINISH
    driver = Driver(seed=seed, retry=retry, hedge=hedge, strategy=rng.choice([by_speed, by_speed, *LoadBalanceStrategy]), thorough=False)
    servers: dict[str, Server] = {}
    for name in ("s0", "s1", "s2"):
        begin = rng.uniform(0.0, 20.0)
        trouble = rng.choice([{}, {"dead": (begin, begin + 10)}, {"overloaded": (begin, begin + 10)}, {"faults": 0.2}, {"hangs": 0.02}])
        mean, cap = rng.choice([0.2, 0.5, 1.0]), rng.choice([None, 6])
        servers[name] = Scaled(mean=mean, spread=0.4, cap=cap, seed=seed, factor=factor, **trouble)  # type: ignore[arg-type]
        found_out: dict[str, Any] = {"window": AdaptiveLimit(driver.rng, 24)} if rng.random() < 0.5 else {}
        rpm = rng.choice([None, None, 600.0])
        driver.add(name, Limits(max_concurrency=16, rpm=None if rpm is None else rpm / factor), **found_out)
    simulation = Simulation(driver, servers, rng, cancel_takes=0.02 * factor, dawdle=rng.choice([0.0, 0.3]) * factor)
    for _ in range(40):
        simulation.submit_at(rng.uniform(0.0, 20.0) * factor, rng.randrange(10))
    for size in (600, 900):
        driver.feed(size, told=rng.random() < 0.7)
    return simulation


@cache
def untouched() -> list[list[tuple[Any, ...]]]:
    """The traces of the scenes as they are."""
    scenes = [troubled(seed, 1.0) for seed in MANY]
    for scene in scenes:
        scene.run()
    return [scene.driver.watch.trace for scene in scenes]


@pytest.mark.parametrize("factor", [2.0, 0.25])
def test_if_every_time_and_every_constant_in_seconds_is_multiplied_every_command_comes_at_the_multiplied_time(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a power of two, with which floats are multiplied exactly: the whole trace is the same, not only the makespan."""
    plain = untouched()
    multiply_constants(monkeypatch, factor)
    for seed, trace in zip(MANY, plain, strict=True):
        other = troubled(seed, factor)
        other.run()
        for one, two in zip(trace, other.driver.watch.trace, strict=True):
            assert (one[0] * factor, *one[1:4]) == (two[0], *two[1:4]), f"seed {seed}"


# all times multiplied, but the scheduler as it is

KINDS: dict[str, dict[str, Any]] = {
    "calm": {},
    "told a rate": {"rpm": 600.0},
    "with caps": {"cap": 6},
    "with caps, found out": {"cap": 6, "window": True},
    "with rates, found out by hints": {"rate": 10.0, "window": True},
}


def bulk(seed: int, factor: float, strategy: LoadBalanceStrategy, hedge: Hedge | None, kind: str) -> Simulation:
    """1500 items over three servers, of which one is four times as quick as another; every time is multiplied."""
    more = dict(KINDS[kind])
    rpm, found_out = more.pop("rpm", None), more.pop("window", False)
    driver = Driver(seed=seed, hedge=hedge, strategy=strategy, thorough=False)
    servers: dict[str, Server] = {}
    for name, mean in ("s0", 0.25), ("s1", 0.5), ("s2", 1.0):
        servers[name] = Scaled(mean=mean, seed=seed, factor=factor, **more)
        adaptive: dict[str, Any] = {"window": AdaptiveLimit(driver.rng, 16), "learned": LearnedRate()} if found_out else {}
        driver.add(name, Limits(max_concurrency=16, rpm=None if rpm is None else rpm / factor), **adaptive)
    driver.feed(1500, told=True)
    return Simulation(driver, servers, Random(seed), cancel_takes=0.02 * factor)


@cache
def usual_end(seed: int, factor: float, kind: str) -> float:
    return ended(bulk(seed, factor, LoadBalanceStrategy.EXPECTED_FINISH, Hedge(), kind))


NEARLY = [("calm", 1 / 16, 0.1), ("calm", 8.0, 0.1), ("told a rate", 1 / 16, 0.05), ("told a rate", 8.0, 0.05), ("with caps", 1 / 16, 0.05)]
NEARLY += [("with caps", 8.0, 0.05), ("with caps, found out", 1 / 16, 0.25), ("with caps, found out", 8.0, 0.15)]
NEARLY += [("with rates, found out by hints", 8.0, 0.1)]
"""A rate is learned within seconds, whatever it is: of a bulk that would be done in seconds at best, that is no small part."""


@pytest.mark.parametrize(("kind", "factor", "share"), NEARLY)
def test_constants_in_seconds_change_the_makespan_by_little_over_two_orders_of_magnitude(kind: str, factor: float, share: float) -> None:
    """Looks at the end of a bulk and tries after rejects come at fixed times. The last long answer decides a seed: the mean counts."""
    found = {}
    for seed in FEW:
        found[seed] = usual_end(seed, factor, kind) / factor / usual_end(seed, 1.0, kind)
    assert abs(sum(found.values()) / len(found) - 1) <= share, found
