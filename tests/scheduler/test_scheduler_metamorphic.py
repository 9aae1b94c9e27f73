"""What must follow when a whole scene is changed: a source more, every time multiplied (P12). A failing seed is in the message.

Answers take as long as their own request says, whoever is asked and whenever, so that two scenes have the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from scale import seeds
from scheduler_driver import Driver, failure
from simulator import Server, Simulation

from qreward.scheduler.limits.concurrency import AdaptiveLimit
from qreward.scheduler.limits.rate import LearnedRate
from qreward.scheduler.outcome import Failure, Outcome
from qreward.settings.policies import Hedge, Limits

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


MORE: dict[str, dict[str, Any]] = {
    "quick": {"mean": 0.05},
    "faulty": {"mean": 0.5, "faults": 0.15},
    "with a small cap": {"mean": 0.5, "cap": 3},
    "refusing": {"dead": (0.0, 1e9)},
    "ten times slower": {"mean": 5.0},
}


def makespan(seed: int, more: dict[str, Any] | None) -> float:
    """Seconds of a bulk over three equal servers, and one more."""
    servers: dict[str, Server] = {f"s{number}": Scaled(mean=0.5, seed=seed) for number in range(3)}
    if more is not None:
        servers["more"] = Scaled(seed=seed, **more)
    driver = Driver(seed=seed, hedge=Hedge(), thorough=False)
    for name in servers:
        driver.add(name, Limits(max_concurrency=16))
    driver.feed(600, told=True)
    return ended(Simulation(driver, servers, Random(seed)))


def test_a_source_more_never_makes_a_bulk_take_longer() -> None:
    """It takes a window full before anybody knows that one is slow. A short bulk may then end with these: its mean counts.

    A single bulk may take a tenth longer, and the time of one slow answer (here a twentieth).
    """
    alone = {seed: makespan(seed, None) for seed in MANY}
    found = {}
    for added, more in MORE.items():
        times = [makespan(seed, more) / alone[seed] for seed in MANY]
        if (sum(times) / len(times) if added == "ten times slower" else max(times)) > (1.05 if added == "ten times slower" else 1.15):
            found[added] = times
    assert not found


# all times multiplied, but the scheduler as it is

KINDS: dict[str, tuple[dict[str, Any], dict[float, float]]] = {
    "calm": ({}, {1 / 16: 0.1, 8.0: 0.1}),
    "with caps, found out": ({"cap": 6, "window": True}, {8.0: 0.15}),
}
"""What servers and the scheduler know; and by which share the makespan may differ if every time is multiplied by a factor."""


def usual_end(seed: int, factor: float, rpm: float | None = None, window: bool = False, **server: Any) -> float:
    """Seconds of 1500 items over three servers, of which one is four times as quick as another; every time is multiplied."""
    driver = Driver(seed=seed, hedge=Hedge(), thorough=False)
    servers: dict[str, Server] = {}
    for name, mean in ("s0", 0.25), ("s1", 0.5), ("s2", 1.0):
        servers[name] = Scaled(mean=mean, seed=seed, factor=factor, **server)
        adaptive: dict[str, Any] = {"window": AdaptiveLimit(driver.rng, 16), "learned": LearnedRate()} if window else {}
        driver.add(name, Limits(max_concurrency=16, rpm=None if rpm is None else rpm / factor), **adaptive)
    driver.feed(1500, told=True)
    return ended(Simulation(driver, servers, Random(seed), cancel_takes=0.02 * factor)) / factor


def test_constants_in_seconds_change_the_makespan_by_little_over_two_orders_of_magnitude() -> None:
    """Looks at the end of a bulk and tries after rejects come at fixed times. The last long answer decides a seed: the mean counts."""
    found = {}
    for kind, (more, shares) in KINDS.items():
        usual = {seed: usual_end(seed, 1.0, **more) for seed in FEW}
        for factor, share in shares.items():
            times = [usual_end(seed, factor, **more) / usual[seed] for seed in FEW]
            if abs(sum(times) / len(times) - 1) > share:
                found[kind, factor] = times
    assert not found
