"""Sources that come, go, are marked or rerouted while work waits: it follows, or fails with an error that says why."""

from __future__ import annotations

import pytest
from scheduler_driver import ERRORS, Driver
from scheduler_warm import live

from qreward.errors import CircuitOpen, NoEndpoint
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.task import Task
from qreward.settings.policies import Hedge, Limits, LoadBalanceStrategy

K = FailureKind


def test_when_the_last_source_leaves_what_waits_fails_and_says_what_to_do() -> None:
    driver = Driver({"a": 1}, refill=False)
    first, under_way, waiting = (driver.submit(tenant=tenant) for tenant in "xyx")
    driver.ok(live(first))
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


def waiting_for_b(driver: Driver) -> Task:
    """A task that failed at a, which is slow, and waits for b, which is quick and full."""
    for other, seconds in (("b", 20.0), ("a", 1.0)):
        driver.mark(other, down=True)
        for _ in range(20):
            driver.ok(live(driver.submit()), after=seconds)
        driver.mark(other, down=False)
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


def test_a_task_that_only_a_lost_source_could_serve_fails_with_what_the_other_said() -> None:
    driver = Driver({"a": 1, "b": 1})
    driver.mark("a", down=True)
    driver.submit()
    driver.mark("a", down=False)
    task = driver.submit()
    driver.fail(live(task), K.UNSUITABLE)
    assert driver.outcome(task) is None
    driver.mark("b", down=True)
    assert driver.outcome(task) is ERRORS[K.UNSUITABLE]


def test_a_route_that_keeps_its_sources_can_change_how_it_chooses() -> None:
    driver = Driver({"a": 9, "b": 9})
    for name, seconds in (("a", 1.0), ("b", 5.0)):  # by expected finish "a" would be preferred
        driver[name].latency.add(seconds)
    driver.reroute(["a", "b"], strategy=LoadBalanceStrategy.ROUND_ROBIN)
    assert [driver.where(driver.submit()) for _ in range(6)] == ["a", "b"] * 3


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


def test_a_source_that_comes_by_a_route_alone_is_looked_at_in_time() -> None:
    driver = Driver(hedge=Hedge(after=1.0))
    for name in "ab":
        driver.add(name, Limits(max_concurrency=4), pools=[])
    driver.reroute(["a", "b"])
    task = driver.submit()
    driver.wait(1.3)
    assert task.copy is not None


def test_a_source_that_went_down_is_not_expected_to_hold_prefixes_any_more() -> None:
    driver = Driver({"a": 8, "b": 8})
    for _ in range(16):
        driver.submit(prefix=Prefix((1,), (2000.0,), 2400.0, named=True))
    lost = driver["a"]
    assert lost in driver.pool.holders.of(1)
    while lost.down_since is None:
        driver.fail(next(iter(lost.attempts)), K.TRANSIENT)
    assert driver.pool.holders.of(1) == (driver["b"],)
