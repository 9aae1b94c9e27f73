"""Tasks that fail wherever they go: they are told apart from endpoints that fail, and end without stopping the others."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random

import pytest
from scheduler_desk import Desk
from scheduler_queue import A, B, C, order, queue
from scheduler_queue import task as waiting
from scheduler_seeds import seeds
from scheduler_warm import live
from simulator import Server, Simulation

from qreward.errors import ServerError
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.state import Source, Task
from qreward.settings.policies import Hedge, Limits, Retry

K = FailureKind
ATTEMPTS = Retry().attempts
DOWN = (10.0, 70.0)
"""An outage, in seconds."""


def fails_everywhere(servers: int, poison: frozenset[int], seed: int, hedge: Hedge | None = None, items: int = 1500) -> Simulation:
    """A bulk on a fleet of servers that are well; the tasks of these indices fail at each of them. It has been played."""
    names = [f"s{number}" for number in range(servers)]
    desk = Desk(seed=seed, hedge=hedge, thorough=False)
    for name in names:
        desk.add(name, Limits(max_concurrency=16))
    simulation = Simulation(desk, {name: Server(mean=0.2, poison=poison) for name in names}, Random(seed))
    desk.feed(items)
    simulation.run()
    return simulation


def finished_at(simulation: Simulation, of: frozenset[int]) -> float:
    return max(entry[0] for entry in simulation.desk.watch.trace if entry[1] == "finish" and entry[2] in of)


def breaker_open(desk: Desk, name: str, tasks: int = 5) -> list[Task]:
    """Take the only source out of service by so many tasks that fail there; they wait to be tried again."""
    failing = [desk.submit() for _ in range(tasks)]
    for attempt in desk.at(name):
        desk.fail(attempt, K.TRANSIENT, after=0.0)
    assert not desk[name].health.in_service
    return failing


def until_sent(desk: Desk, most: float = 20.0) -> None:
    """Until something is under way."""
    end = desk.now + most
    while not desk.watch.live:
        assert desk.now < end, f"nothing was sent in {most} s"
        desk.wait(0.05)


# whole bulks

BULKS = {
    "a tenth of a bulk, at one endpoint": (1, range(5, 1500, 10), 1.5),
    "a tenth of a bulk, at two endpoints": (2, range(5, 1500, 10), 1.5),
    "a tenth of a bulk, at four endpoints": (4, range(5, 1500, 10), 1.6),
    "a fifth of a bulk, at four endpoints": (4, range(2, 1500, 5), 2.5),
    "the last twenty, at two endpoints": (2, range(1481, 1501), 1.5),
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
            outcomes = simulation.desk.watch.finished
            wrong = {task.index for task, outcome in outcomes.items() if isinstance(outcome, ServerError)} ^ poison
            sends = Counter(attempt.task.index for _, attempt in simulation.desk.watch.sends)
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
        desk = Desk({"a": 8})
        failing = breaker_open(desk, "a", tasks=8)
        healthy = desk.submit(level)
        until_sent(desk)
        assert [attempt.task for attempt in desk.at("a")] == [healthy]
        desk.ok(live(healthy))
        assert desk["a"].health.half_open_limit > 1
        for _ in range(8):
            assert all(attempt.task in failing for attempt in desk.at("a"))
            for attempt in desk.at("a"):
                desk.ok(attempt, after=0.1)
        assert all(isinstance(desk.outcome(task), Answer) for task in failing), "an outage is no fault of theirs"
        assert all(desk["a"].health.serving_since > then for task in failing for _, then in task.failures)


def test_what_was_only_turned_away_counts_as_never_failed() -> None:
    desk = Desk({"a": 8})
    for _ in range(5):
        desk.submit()
    failing = desk.at("a")
    rejected = desk.submit()
    for attempt in failing:
        desk.fail(attempt, K.TRANSIENT, after=0.0)
    desk.fail(live(rejected), K.OVERLOADED, after=0.9)
    assert not desk.watch.live
    until_sent(desk)
    assert [attempt.task for attempt in desk.at("a")] == [rejected], "although it came last"


def test_a_source_on_its_way_back_is_given_what_has_failed_least() -> None:
    source = Source("s", Random(0))
    tasks = [waiting(born=float(number), avoids=(other,)) for number, other in enumerate((A, B, C))]
    for task, times in zip(tasks, (3, 1, 2), strict=True):
        task.failures = ((A, 0.0),) * times
    assert order(queue(*tasks), source) == tasks, "a source in service takes the oldest first"
    source.health.eject(0.0, 1.0)
    assert order(queue(*tasks), source) == [tasks[1], tasks[2], tasks[0]]


def test_a_task_that_failed_where_others_were_served_does_not_end_the_way_back_of_a_source_and_pays_for_its_try() -> None:
    desk = Desk({"a": 8})
    poison, healthy = desk.submit(), desk.submit()
    desk.fail(live(poison), K.TRANSIENT, after=0.1)
    desk.ok(live(healthy), after=0.1)
    desk.withdraw(*breaker_open(desk, "a", tasks=6))
    for attempt in list(desk.watch.live):
        desk.cancelled(attempt)
    until_sent(desk)
    assert desk.where(poison) == "a"
    assert poison.tries == 1
    desk.fail(live(poison), K.TRANSIENT)
    assert poison.tries == 2
    assert desk["a"].health.in_service
    assert desk.where(desk.submit()) == "a", "the next task is the one that decides"


def test_a_task_that_always_fails_is_not_sent_more_than_twice_as_often_as_its_attempts_whatever_it_is_taken_for() -> None:
    too_many = {}
    for attempts in (1, 2, 4):
        desk = Desk({"a": 8, "b": 8}, retry=Retry(attempts=attempts))
        tasks = [desk.submit() for _ in range(16)]
        while any(desk.outcome(task) is None for task in tasks):
            until_sent(desk)
            for attempt in list(desk.watch.live):
                desk.fail(attempt, K.TRANSIENT)
        most = max(len(desk.path(task)) for task in tasks)
        if most > 2 * attempts:
            too_many[attempts] = most
    assert not too_many


def test_a_connection_that_fails_counts_against_its_source_wherever_the_task_has_failed_before() -> None:
    desk = Desk({"a": 8, "b": 8})
    desk.mark("b", down=True)
    tasks = [desk.submit() for _ in range(5)]
    desk.mark("b", down=False)
    for number, task in enumerate(tasks):
        desk.fail(live(task), K.TRANSIENT, after=0.0)
        desk.mark("b", down=number < 4 and not desk["b"].health.marked_unhealthy)
        desk.mark("b", down=False)
        desk.ok(live(desk.submit()), after=0.1)
    at_b = [attempt for attempt in desk.at("b") if attempt.task in tasks]
    assert len(at_b) == 5
    for attempt in at_b:
        desk.fail(attempt, K.UNREACHABLE, after=0.0)
    assert not desk["b"].health.in_service


# and an outage is still waited out


@pytest.mark.parametrize("servers", [1, 4])
def test_an_outage_in_which_every_request_is_answered_with_500_loses_nothing(servers: int) -> None:
    lost = {}
    for seed in seeds(1):
        names = [f"s{number}" for number in range(servers)]
        desk = Desk(seed=seed, thorough=False)
        for name in names:
            desk.add(name, Limits(max_concurrency=16))
        fleet = {name: Server(mean=0.5, spread=0.3, dead=DOWN, dead_kind=K.TRANSIENT) for name in names}
        simulation = Simulation(desk, fleet, Random(seed))
        desk.feed(600 * servers + 800)
        simulation.run()
        failed = sum(not isinstance(outcome, Answer) for outcome in desk.watch.finished.values())
        sent = sum(DOWN[0] + 1 < now < DOWN[1] for now, _ in desk.watch.sends)
        if (
            failed
            or sent > 2 * servers * (DOWN[1] - DOWN[0])
            or any(source.health.half_open_limit < inf for source in desk.sources.values())
        ):
            lost[seed] = failed, sent
    assert not lost


@pytest.mark.parametrize("seed", seeds(1))
def test_a_dozen_tasks_of_which_nothing_else_is_known_outlive_an_outage_of_half_a_minute(seed: int) -> None:
    desk = Desk(seed=seed)
    desk.add("a", Limits(max_concurrency=16))
    simulation = Simulation(desk, {"a": Server(mean=0.5, dead=(10.0, 40.0), dead_kind=K.TRANSIENT)}, Random(seed))
    for _ in range(12):
        simulation.submit_at(10.5)
    simulation.run()
    assert all(isinstance(outcome, Answer) for outcome in desk.watch.finished.values())
