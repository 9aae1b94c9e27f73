"""Sources that come, go, are marked or rerouted while work waits: it follows, or fails with an error that says why."""

from __future__ import annotations

import pytest
from scheduler_driver import ERRORS, Driver
from scheduler_warm import live

from qreward.errors import CircuitOpen, NoEndpoint
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.state import Task
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy, Retry

K = FailureKind


def test_a_source_that_joins_takes_what_waits() -> None:
    driver = Driver({"a": 1})
    driver.submit()
    waiting = [driver.submit() for _ in range(3)]
    driver.add("b", Limits(max_concurrency=2))
    assert [driver.where(task) for task in waiting] == ["b", "b", None]


def test_a_source_that_leaves_finishes_what_it_has_and_gets_nothing_new() -> None:
    driver = Driver({"a": 1, "b": 1})
    first, second = driver.submit(), driver.submit()
    leaving = str(driver.where(first))
    driver.remove(leaving)
    waiting = driver.submit()
    driver.ok(live(first))
    assert isinstance(driver.outcome(first), Answer)
    assert driver.where(waiting) is None
    driver.ok(live(second))
    assert driver.where(waiting) not in (None, leaving)


def test_when_the_last_source_leaves_what_waits_fails_and_says_what_to_do() -> None:
    driver = Driver({"a": 1}, refill=False)
    under_way, waiting = driver.submit(), driver.submit()
    feed = driver.feed(3)
    driver.serve(feed)
    inside = list(feed.buffer)
    driver.remove("a")
    error = driver.outcome(waiting)
    assert isinstance(error, NoEndpoint)
    assert "first" in str(error)
    assert all(isinstance(driver.outcome(task), NoEndpoint) for task in inside)
    driver.ok(live(under_way))
    assert isinstance(driver.outcome(under_way), Answer)
    assert isinstance(driver.outcome(driver.submit()), NoEndpoint)


def test_a_retry_that_comes_due_after_the_last_source_has_left_fails() -> None:
    driver = Driver({"a": 1}, retry=Retry(base=5.0))
    task = driver.submit()
    driver.fail(live(task), K.TRANSIENT)
    driver.remove("a")
    driver.wait(10.0)
    assert isinstance(driver.outcome(task), NoEndpoint)


def test_a_bulk_on_a_route_without_sources_is_read_to_its_end() -> None:
    driver = Driver({"a": 1})
    driver.remove("a")
    driver.feed(100)
    assert len(driver.watch.finished) == 100
    assert all(isinstance(error, NoEndpoint) for error in driver.watch.finished.values())
    driver.watch.check_all_over()


def test_a_source_that_is_marked_down_finishes_what_it_has_and_gets_nothing_until_it_is_marked_up() -> None:
    driver = Driver({"a": 5})
    first = driver.submit()
    driver.add("b", Limits(max_concurrency=5))
    driver.mark("a", down=True)
    driver.ok(live(first))
    assert isinstance(driver.outcome(first), Answer)
    tasks = [driver.submit() for _ in range(7)]
    assert [driver.where(task) for task in tasks] == ["b"] * 5 + [None] * 2
    driver.mark("a", down=False)
    assert [driver.where(task) for task in tasks[5:]] == ["a", "a"]


def test_when_all_are_marked_down_what_waits_fails_and_names_them() -> None:
    driver = Driver({"a": 1, "b": 1})
    driver.submit()
    driver.submit()
    waiting = driver.submit()
    driver.mark("a", down=True)
    assert driver.outcome(waiting) is None
    driver.mark("b", down=True)
    for task in (waiting, driver.submit()):
        error = driver.outcome(task)
        assert isinstance(error, CircuitOpen)
        assert "'a', 'b'" in str(error)
        assert "mark_healthy" in str(error)


# tasks that avoid a source


def waiting_for_b(driver: Driver) -> Task:
    """A task that failed at a, and waits for b, which is full."""
    driver.mark("a", down=True)
    driver.submit()
    driver.mark("a", down=False)
    task = driver.submit()
    assert driver.where(task) == "a"
    driver.fail(live(task), K.TRANSIENT)
    assert driver.where(task) is None
    return task


@pytest.mark.parametrize("how", ["remove", "mark", "breaker", "gate"])
def test_a_task_that_waits_for_a_source_that_is_lost_goes_back_to_the_one_it_avoids(how: str) -> None:
    driver = Driver({"a": 1, "b": 1})
    task = waiting_for_b(driver)
    match how:
        case "remove":
            driver.remove("b")
        case "mark":
            driver.mark("b", down=True)
        case "gate":
            driver.fail(driver.at("b")[0], K.OVERLOADED, retry_after=30.0)
            driver.ok(driver.at("a")[0])  # the one that was turned away was older, and went first
        case _:
            driver["b"].health.eject(driver.now, 30.0)
            driver.scheduler.on_source_lost(driver.now, driver["b"])
            driver.watch.after(driver.now)
    assert driver.path(task) == ["a", "a"]


def test_a_task_that_is_turned_away_by_a_source_that_has_left_goes_back_to_the_one_it_avoids() -> None:
    driver = Driver({"a": 1, "b": 1})
    task = driver.submit()
    first = str(driver.where(task))
    driver.fail(live(task), K.TRANSIENT)
    second = str(driver.where(task))
    assert {first, second} == {"a", "b"}
    driver.remove(second)
    driver.fail(live(task), K.OVERLOADED)
    assert driver.where(task) == first


def lose(driver: Driver, name: str, how: str) -> None:
    if how == "remove":
        driver.remove(name)
    else:
        driver.mark(name, down=True)


@pytest.mark.parametrize("how", ["remove", "mark"])
def test_a_retry_that_comes_due_after_the_source_it_waited_for_was_lost_goes_back(how: str) -> None:
    """Without budget it has to wait before it may go to the other source; meanwhile that one goes."""
    driver = Driver({"a": 1, "b": 1}, retry=Retry(budget=0.0, budget_floor=1.0))
    while driver.scheduler._failure_policy.budget.withdraw(0.0):
        pass
    task = driver.submit()
    first = str(driver.where(task))
    driver.fail(live(task), K.TRANSIENT, after=0.0)
    assert driver.where(task) is None
    lose(driver, "b" if first == "a" else "a", how)
    driver.wait(2.0)
    assert driver.where(task) == first


@pytest.mark.parametrize("how", ["remove", "mark"])
def test_a_task_that_only_a_lost_source_could_serve_fails_with_what_the_other_said(how: str) -> None:
    driver = Driver({"a": 1, "b": 1})
    driver.mark("a", down=True)
    driver.submit()
    driver.mark("a", down=False)
    task = driver.submit()
    driver.fail(live(task), K.UNSUITABLE)
    assert driver.outcome(task) is None
    lose(driver, "b", how)
    assert driver.outcome(task) is ERRORS[K.UNSUITABLE]


# new routes


def test_when_a_route_gets_other_sources_what_waits_goes_there_and_what_is_under_way_is_finished() -> None:
    driver = Driver({"a": 1})
    driver.add("b", Limits(max_concurrency=1), pools=[])
    under_way, waiting = driver.submit(), driver.submit()
    driver.reroute(["b"])
    assert driver.where(waiting) == "b"
    assert [source.name for source in driver.pool.sources] == ["b"]
    driver.ok(live(under_way))
    assert isinstance(driver.outcome(under_way), Answer)


def test_what_waits_stays_when_all_that_is_left_of_the_old_sources_is_down() -> None:
    driver = Driver({"a": 1, "b": 1})
    driver.add("c", Limits(max_concurrency=1), pools=[])
    driver.submit()
    driver.submit()
    waiting = driver.submit()
    driver.mark("a", down=True)
    driver.reroute(["a", "c"])
    assert driver.where(waiting) == "c"


def test_a_route_that_keeps_its_sources_can_change_how_it_chooses() -> None:
    driver = Driver({"a": 4, "b": 4})
    driver.reroute(["a", "b"], strategy=LoadBalanceStrategy.ROUND_ROBIN)
    assert [driver.where(driver.submit()) for _ in range(6)] == ["a", "b"] * 3


# sources in several pools


def test_a_shared_source_pulls_the_most_urgent_of_all_its_pools() -> None:
    driver = Driver()
    second = driver.new_pool("second")
    driver.add("a", Limits(max_concurrency=1), pools=[driver.pool, second])
    driver.submit()
    normal, high, low = driver.submit(5), driver.submit(0, pool=second), driver.submit(9)
    order = []
    for _ in range(3):
        driver.ok(driver.at("a")[0], after=0.1)
        order.append(driver.at("a")[0].task)
    assert order == [high, normal, low]


def test_a_pool_that_gets_its_sources_by_a_route_shares_by_tokens_too() -> None:
    driver = Driver()
    pool = driver.new_pool("route")
    driver.add("a", Limits(max_concurrency=1))
    driver.reroute(["a"], pool)
    assert pool.queue.cost == driver.scheduler._cost


def test_a_source_that_comes_by_a_route_alone_is_looked_at_in_time() -> None:
    driver = Driver(hedge=Hedge(after=1.0))
    for name in "ab":
        driver.add(name, Limits(max_concurrency=4), pools=[])
    driver.reroute(["a", "b"])
    task = driver.submit()
    driver.wait(1.3)
    assert task.copy is not None
