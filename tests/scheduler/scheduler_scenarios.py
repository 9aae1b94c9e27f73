"""Random scenes for the simulator: a fleet with its troubles, callers with their whims, operators who change things. All from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from scheduler_driver import Driver
from simulator import NEVER, Server, Simulation

from qreward.scheduler.limits.concurrency import AdaptiveLimit
from qreward.scheduler.limits.rate import LearnedRate
from qreward.scheduler.pool import Pool
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy, Retry

HEDGES = [None, Hedge(), Hedge(after=0.5), Hedge(quantile=0.5, budget=0.5), Hedge(budget=0.0, reserve=2)]
PEACE = 120.0
"""Seconds after which every server is well and every operator has gone home."""


def random_simulation(seed: int, strategies: Sequence[LoadBalanceStrategy] = tuple(LoadBalanceStrategy)) -> Simulation:
    """A scene in which, whatever happens, all tasks come to an end: what can never be done has a timeout."""
    rng = Random(seed)
    retry, strategy = Retry(attempts=rng.choice([1, 2, 4, 8])), rng.choice(strategies)
    driver = Driver(seed=seed, retry=retry, strategy=strategy, hedge=rng.choice(HEDGES), most_waiting=rng.choice([None, None, 20]))
    pools = [driver.pool, driver.new_pool("second", rng.choice(strategies))][: rng.choice([1, 1, 2])]
    servers = {f"s{number}": _server(rng) for number in range(rng.randint(1, 4))}
    for name, server in servers.items():
        both = name == "s0" or rng.random() < 0.5  # no pool is without a source
        limits, found_out = _limits(server, rng), {}
        if rng.random() < 0.5:
            found_out = {"window": AdaptiveLimit(driver.rng, limits.max_concurrency), "learned": LearnedRate()}
        driver.add(name, limits, pools=pools if both else [rng.choice(pools)], weight=rng.choice([1.0, 1.0, 3.0]), **found_out)
    simulation = Simulation(driver, servers, rng, dawdle=rng.choice([0.0, 0.0, 0.3]))
    _callers(simulation, pools, rng)
    if rng.random() < 0.6:
        _operators(simulation, pools, rng)
    return simulation


def _server(rng: Random) -> Server:
    server = Server(mean=rng.choice([0.05, 0.5, 2.0]), spread=rng.choice([0.1, 0.6, 1.0]))
    server.faults = rng.choice([0.0, 0.02, 0.15, 0.4])
    server.hangs = rng.choice([0.0, 0.0, 0.02])
    server.cap = rng.choice([None, None, 1, 4, 16])
    server.rate = rng.choice([None, None, 5.0, 20.0])
    server.dead, server.overloaded = _interval(rng), _interval(rng)
    server.dead_after = rng.choice([0.0, 0.005, 5.0])
    server.poison = frozenset(rng.sample(range(200), 3)) if rng.random() < 0.2 else frozenset()
    return server


def _interval(rng: Random) -> tuple[float, float]:
    begin = rng.uniform(0, 60)
    return (begin, min(PEACE, begin + rng.expovariate(1 / 15))) if rng.random() < 0.3 else NEVER


def _limits(server: Server, rng: Random) -> Limits:
    """What the scheduler is told: the truth, too much, too little, or nothing."""
    rpm = server.rate * 60 * rng.choice([0.5, 0.95, 2.0]) if server.rate is not None and rng.random() < 0.5 else None
    return Limits(max_concurrency=rng.choice([1, 3, 8, 32]), rpm=rpm)


def _callers(simulation: Simulation, pools: list[Pool], rng: Random) -> None:
    driver = simulation.driver
    endless = 300.0 if any(server.poison for server in simulation.servers.values()) else None
    for _ in range(rng.randint(0, 3)):
        timeout = rng.choice([endless, endless, 5.0, 60.0])
        size = rng.choice([0, 1, 30, 150, 600])
        feed = driver.feed(size, rng.choice([0, 5, 9]), timeout, rng.choice(pools), told=rng.random() < 0.5)
        if rng.random() < 0.2:
            simulation.close_feed_at(rng.uniform(0, 60), feed)
    for _ in range(rng.randint(1, 60)):
        simulation.submit_at(rng.uniform(0, 60), rng.randrange(10), rng.choice([endless, 0.5, 10.0, 100.0]))
    for _ in range(rng.choice([0, 0, 5])):
        simulation.withdraw_some_at(rng.uniform(0, 60), rng.choice([0.1, 1.0]))


def _operators(simulation: Simulation, pools: list[Pool], rng: Random) -> None:
    """Changes at random times, each of them undone later."""
    driver = simulation.driver
    for name in simulation.servers:
        begin, end = rng.uniform(0, 60), rng.uniform(60, PEACE)
        match rng.randrange(4):
            case 0:
                simulation.plan(begin, partial(driver.mark, name, down=True))
                simulation.plan(end, partial(driver.mark, name, down=False))
            case 1 if name != "s0":  # a pool without a source fails what it holds: see test_scheduler_fleet
                for pool in list(driver[name].pools):
                    simulation.plan(begin, partial(driver.leave, name, pool))
                    simulation.plan(end, partial(driver.join, name, pool))
            case 2 if len(pools) == 1:
                simulation.plan(end, partial(driver.reroute, rng.sample(list(simulation.servers), len(simulation.servers))))
            case _:
                pass
