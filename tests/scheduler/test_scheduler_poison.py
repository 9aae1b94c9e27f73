"""Tasks that fail wherever they go: they are told apart from endpoints that fail, and end without stopping the others."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest
from scale import seeds
from scheduler_driver import Driver
from scheduler_queue import A, B, C, order, queue
from scheduler_queue import task as waiting
from scheduler_warm import live
from simulator import Server, Simulation

from qreward.errors import ServerError
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.source import Source
from qreward.scheduler.task import Task
from qreward.settings.policies import Hedge, Limits, Retry

K = FailureKind
ATTEMPTS = Retry().attempts


def fails_everywhere(servers: int, poison: frozenset[int], seed: int, hedge: Hedge | None = None, items: int = 1500) -> Simulation:
    """A bulk on a fleet of servers that are well; the tasks of these indices fail at each of them. It has been played."""
    names = [f"s{number}" for number in range(servers)]
    driver = Driver(seed=seed, hedge=hedge, thorough=False)
    for name in names:
        driver.add(name, Limits(max_concurrency=16))
    simulation = Simulation(driver, {name: Server(mean=0.2, poison=poison) for name in names}, Random(seed))
    driver.feed(items)
    simulation.run()
    return simulation


def finished_at(simulation: Simulation, of: frozenset[int]) -> float:
    return max(entry[0] for entry in simulation.driver.watch.trace if entry[1] == "finish" and entry[2] in of)


def breaker_open(driver: Driver, name: str, tasks: int = 5) -> list[Task]:
    """Take the only source out of service by so many tasks that fail there; they wait to be tried again."""
    failing = [driver.submit() for _ in range(tasks)]
    for attempt in driver.at(name):
        driver.fail(attempt, K.TRANSIENT, after=0.0)
    assert not driver[name].health.in_service
    return failing


def until_sent(driver: Driver, most: float = 20.0) -> None:
    """Until something is under way."""
    end = driver.now + most
    while not driver.watch.live:
        assert driver.now < end, f"nothing was sent in {most} s"
        driver.wait(0.05)


# whole bulks

BULKS = {
    "a few of a bulk, at four endpoints": (4, range(7, 1500, 150), 1.5),
    "a tenth of a bulk, at one endpoint": (1, range(5, 1500, 10), 1.5),
    "a tenth of a bulk, at two endpoints": (2, range(5, 1500, 10), 1.5),
    "a tenth of a bulk, at four endpoints": (4, range(5, 1500, 10), 1.6),
    "a fifth of a bulk, at four endpoints": (4, range(2, 1500, 5), 2.5),
    "the last twenty, at two endpoints": (2, range(1481, 1501), 1.7),
    "the last twenty, at four endpoints": (4, range(1481, 1501), 2.0),
}
"""Endpoints, indices that fail at each of them, and how many times as long all may take as without them."""


def test_tasks_that_fail_everywhere_end_with_their_error_and_delay_the_others_little() -> None:
    found = []
    for name, (servers, indices, most) in BULKS.items():
        poison = frozenset(indices)
        for seed in seeds(1):
            clean = finished_at(fails_everywhere(servers, frozenset(), seed), frozenset(range(1, 1501)))
            simulation = fails_everywhere(servers, poison, seed)
            outcomes = simulation.driver.watch.finished
            wrong = {task.index for task, outcome in outcomes.items() if isinstance(outcome, ServerError)} ^ poison
            sends = Counter(attempt.task.index for _, attempt in simulation.driver.watch.sends)
            if len(poison) < 20:  # the breakers stay closed, so each has its attempts and not one more
                wrong |= {index for index in poison if sends[index] != ATTEMPTS}
                wrong |= {-1 for source in simulation.driver.sources.values() if source.health.since > -inf}
            took = finished_at(simulation, frozenset(range(1, 1501)))
            if wrong or took > most * clean or max(sends.values()) > 2 * ATTEMPTS:
                found.append(f"{name}, seed {seed}: {took:.1f} s instead of {clean:.1f}, {max(sends.values())} sends, {len(wrong)} wrong")
    assert not found, "\n".join(found)


def test_at_the_end_of_a_bulk_the_only_endpoint_is_not_asked_for_minutes_about_tasks_that_fail() -> None:
    """Nothing else is left that could show that the endpoint is well: each task is given as many tries as it may have."""
    poison = frozenset(range(1481, 1501))
    late = []
    for seed in seeds(2):
        simulation = fails_everywhere(1, poison, seed)
        wait = finished_at(simulation, poison) - finished_at(simulation, frozenset(range(1, 1481)))
        if wait > 120.0:
            late.append((seed, wait))
    assert not late


# one at a time


def test_a_source_on_its_way_back_is_given_what_never_failed_before_what_did_however_urgent() -> None:
    for level in (5, 9):
        driver = Driver({"a": 8})
        failing = breaker_open(driver, "a", tasks=8)
        healthy = driver.submit(level)
        until_sent(driver)
        assert [attempt.task for attempt in driver.at("a")] == [healthy]
        driver.ok(live(healthy))
        assert not driver["a"].health.half_open
        for _ in range(8):
            assert all(attempt.task in failing for attempt in driver.at("a"))
            for attempt in driver.at("a"):
                driver.ok(attempt, after=0.1)
        assert all(isinstance(driver.outcome(task), Answer) for task in failing), "an outage is no fault of theirs"
        assert all(driver["a"].health.serving_since > then for task in failing for _, then in task.failures)


def test_what_was_only_turned_away_counts_as_never_failed() -> None:
    driver = Driver({"a": 8})
    for _ in range(5):
        driver.submit()
    failing = driver.at("a")
    rejected = driver.submit()
    for attempt in failing:
        driver.fail(attempt, K.TRANSIENT, after=0.0)
    driver.fail(live(rejected), K.OVERLOADED, after=0.9)
    assert not driver.watch.live
    until_sent(driver)
    assert [attempt.task for attempt in driver.at("a")] == [rejected], "although it came last"


def test_a_source_on_its_way_back_is_given_what_has_failed_least() -> None:
    source = Source("s", Random(0))
    tasks = [waiting(born=float(number), avoids=(other,)) for number, other in enumerate((A, B, C))]
    for task, times in zip(tasks, (3, 1, 2), strict=True):
        task.failures = ((A, 0.0),) * times
    assert order(queue(*tasks), source) == tasks, "a source in service takes the oldest first"
    source.health.eject(0.0, 1.0)
    assert order(queue(*tasks), source) == [tasks[1], tasks[2], tasks[0]]


def test_a_task_that_failed_where_others_were_served_does_not_end_the_way_back_of_a_source_and_pays_for_its_try() -> None:
    driver = Driver({"a": 8})
    poison, healthy = driver.submit(), driver.submit()
    driver.fail(live(poison), K.TRANSIENT, after=0.1)
    driver.ok(live(healthy), after=0.1)
    driver.withdraw(*breaker_open(driver, "a", tasks=6))
    for attempt in list(driver.watch.live):
        driver.cancelled(attempt)
    until_sent(driver)
    assert driver.where(poison) == "a"
    assert poison.tries == 1
    driver.fail(live(poison), K.TRANSIENT)
    assert poison.tries == 2
    assert driver["a"].health.in_service
    assert driver.where(driver.submit()) == "a", "the next task is the one that decides"


def test_a_connection_that_fails_counts_against_its_source_wherever_the_task_has_failed_before() -> None:
    driver = Driver({"a": 8, "b": 8})
    driver.mark("b", down=True)
    tasks = [driver.submit() for _ in range(2)]
    driver.mark("b", down=False)
    for number, task in enumerate(tasks):
        driver.fail(live(task), K.TRANSIENT, after=0.0)
        driver.mark("b", down=number < 1 and not driver["b"].health.marked_unhealthy)
        driver.mark("b", down=False)
        driver.mark("a", down=True)
        driver.ok(live(driver.submit()), after=0.1)
        driver.mark("a", down=False)
    at_b = [attempt for attempt in driver.at("b") if attempt.task in tasks]
    assert len(at_b) == 2
    driver.fail(at_b[0], K.UNREACHABLE, after=0.0)
    assert driver["b"].health.in_service, "it has answered since"
    driver.wait(0.1)
    driver.mark("b", down=True)
    task = driver.submit()
    driver.mark("b", down=False)
    driver.fail(live(task), K.TRANSIENT)
    assert driver.where(task) == "b"
    driver.fail(live(task), K.UNREACHABLE, after=0.0)
    assert not driver["b"].health.in_service, "nothing was answered since"


# and an outage is still waited out


@pytest.mark.parametrize("seed", seeds(1))
def test_a_dozen_tasks_of_which_nothing_else_is_known_outlive_an_outage_of_half_a_minute(seed: int) -> None:
    driver = Driver(seed=seed)
    driver.add("a", Limits(max_concurrency=16))
    simulation = Simulation(driver, {"a": Server(mean=0.5, dead=(10.0, 40.0), dead_kind=K.TRANSIENT)}, Random(seed))
    for _ in range(12):
        simulation.submit_at(10.5)
    simulation.run()
    assert all(isinstance(outcome, Answer) for outcome in driver.watch.finished.values())
