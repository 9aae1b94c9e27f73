"""Sources that come, go, are marked or rerouted while work waits: it follows, or fails with an error that says why."""

from __future__ import annotations

import pytest
from scheduler_desk import ERRORS, Desk
from scheduler_warm import live

from qreward.errors import CircuitOpen, NoEndpoint
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.state import Task
from qreward.settings.policies import Limits, LoadBalanceStrategy, Retry

K = FailureKind


def test_a_source_that_joins_takes_what_waits() -> None:
    desk = Desk({"a": 1})
    desk.submit()
    waiting = [desk.submit() for _ in range(3)]
    desk.add("b", Limits(max_concurrency=2))
    assert [desk.where(task) for task in waiting] == ["b", "b", None]


def test_a_source_that_leaves_finishes_what_it_has_and_gets_nothing_new() -> None:
    desk = Desk({"a": 1, "b": 1})
    first, second = desk.submit(), desk.submit()
    leaving = str(desk.where(first))
    desk.remove(leaving)
    waiting = desk.submit()
    desk.ok(live(first))
    assert isinstance(desk.outcome(first), Answer)
    assert desk.where(waiting) is None
    desk.ok(live(second))
    assert desk.where(waiting) not in (None, leaving)


def test_when_the_last_source_leaves_what_waits_fails_and_says_what_to_do() -> None:
    desk = Desk({"a": 1}, refill=False)
    under_way, waiting = desk.submit(), desk.submit()
    feed = desk.feed(3)
    desk.serve(feed)
    inside = list(feed.buffer)
    desk.remove("a")
    error = desk.outcome(waiting)
    assert isinstance(error, NoEndpoint)
    assert "first" in str(error)
    assert all(isinstance(desk.outcome(task), NoEndpoint) for task in inside)
    desk.ok(live(under_way))
    assert isinstance(desk.outcome(under_way), Answer)
    assert isinstance(desk.outcome(desk.submit()), NoEndpoint)


def test_a_retry_that_comes_due_after_the_last_source_has_left_fails() -> None:
    desk = Desk({"a": 1}, retry=Retry(base=5.0))
    task = desk.submit()
    desk.fail(live(task), K.TRANSIENT)
    desk.remove("a")
    desk.wait(10.0)
    assert isinstance(desk.outcome(task), NoEndpoint)


def test_a_bulk_on_a_route_without_sources_is_read_to_its_end() -> None:
    desk = Desk({"a": 1})
    desk.remove("a")
    desk.feed(100)
    assert len(desk.watch.finished) == 100
    assert all(isinstance(error, NoEndpoint) for error in desk.watch.finished.values())
    desk.watch.check_all_over()


def test_a_source_that_is_marked_down_finishes_what_it_has_and_gets_nothing_until_it_is_marked_up() -> None:
    desk = Desk({"a": 5})
    first = desk.submit()
    desk.add("b", Limits(max_concurrency=5))
    desk.mark("a", down=True)
    desk.ok(live(first))
    assert isinstance(desk.outcome(first), Answer)
    tasks = [desk.submit() for _ in range(7)]
    assert [desk.where(task) for task in tasks] == ["b"] * 5 + [None] * 2
    desk.mark("a", down=False)
    assert [desk.where(task) for task in tasks[5:]] == ["a", "a"]


def test_when_all_are_marked_down_what_waits_fails_and_says_who_is_down() -> None:
    desk = Desk({"a": 1, "b": 1})
    desk.submit()
    desk.submit()
    waiting = desk.submit()
    desk.mark("a", down=True)
    assert desk.outcome(waiting) is None
    desk.mark("b", down=True)
    for task in (waiting, desk.submit()):
        error = desk.outcome(task)
        assert isinstance(error, CircuitOpen)
        assert "'a', 'b'" in str(error)
        assert "mark_healthy" in str(error)


# tasks that avoid a source


def waiting_for_b(desk: Desk) -> Task:
    """A task that failed at a, and waits for b, which is full."""
    desk.mark("a", down=True)
    desk.submit()
    desk.mark("a", down=False)
    task = desk.submit()
    assert desk.where(task) == "a"
    desk.fail(live(task), K.TRANSIENT)
    assert desk.where(task) is None
    return task


@pytest.mark.parametrize("how", ["remove", "mark", "breaker", "gate"])
def test_a_task_that_waits_for_a_source_that_is_lost_goes_back_to_the_one_it_avoids(how: str) -> None:
    desk = Desk({"a": 1, "b": 1})
    task = waiting_for_b(desk)
    match how:
        case "remove":
            desk.remove("b")
        case "mark":
            desk.mark("b", down=True)
        case "gate":
            desk.fail(desk.at("b")[0], K.OVERLOADED, retry_after=30.0)
            desk.ok(desk.at("a")[0])  # the one that was turned away was older, and went first
        case _:
            desk["b"].health.eject(desk.now, 30.0)
            desk.scheduler.on_source_lost(desk.now, desk["b"])
            desk.watch.after(desk.now)
    assert desk.path(task) == ["a", "a"]


def test_a_task_that_is_turned_away_by_a_source_that_has_left_goes_back_to_the_one_it_avoids() -> None:
    desk = Desk({"a": 1, "b": 1})
    task = desk.submit()
    first = str(desk.where(task))
    desk.fail(live(task), K.TRANSIENT)
    second = str(desk.where(task))
    assert {first, second} == {"a", "b"}
    desk.remove(second)
    desk.fail(live(task), K.OVERLOADED)
    assert desk.where(task) == first


def lose(desk: Desk, name: str, how: str) -> None:
    if how == "remove":
        desk.remove(name)
    else:
        desk.mark(name, down=True)


@pytest.mark.parametrize("how", ["remove", "mark"])
def test_a_retry_that_comes_due_after_the_source_it_waited_for_was_lost_goes_back(how: str) -> None:
    """Without budget it has to wait before it may go to the other source; meanwhile that one goes."""
    desk = Desk({"a": 1, "b": 1}, retry=Retry(budget=0.0, budget_floor=1.0))
    while desk.scheduler._failure_policy.budget.withdraw(0.0):
        pass
    task = desk.submit()
    first = str(desk.where(task))
    desk.fail(live(task), K.TRANSIENT, after=0.0)
    assert desk.where(task) is None
    lose(desk, "b" if first == "a" else "a", how)
    desk.wait(2.0)
    assert desk.where(task) == first


@pytest.mark.parametrize("how", ["remove", "mark"])
def test_a_task_that_only_a_lost_source_could_serve_fails_with_what_the_other_said(how: str) -> None:
    desk = Desk({"a": 1, "b": 1})
    desk.mark("a", down=True)
    desk.submit()
    desk.mark("a", down=False)
    task = desk.submit()
    desk.fail(live(task), K.UNSUITABLE)
    assert desk.outcome(task) is None
    lose(desk, "b", how)
    assert desk.outcome(task) is ERRORS[K.UNSUITABLE]


# new routes


def test_when_a_route_gets_other_sources_what_waits_goes_there_and_what_is_under_way_is_finished() -> None:
    desk = Desk({"a": 1})
    desk.add("b", Limits(max_concurrency=1), pools=[])
    under_way, waiting = desk.submit(), desk.submit()
    desk.reroute(["b"])
    assert desk.where(waiting) == "b"
    assert [source.name for source in desk.pool.sources] == ["b"]
    desk.ok(live(under_way))
    assert isinstance(desk.outcome(under_way), Answer)


def test_what_waits_stays_when_all_that_is_left_of_the_old_sources_is_down() -> None:
    desk = Desk({"a": 1, "b": 1})
    desk.add("c", Limits(max_concurrency=1), pools=[])
    desk.submit()
    desk.submit()
    waiting = desk.submit()
    desk.mark("a", down=True)
    desk.reroute(["a", "c"])
    assert desk.where(waiting) == "c"


def test_a_route_that_keeps_its_sources_can_change_how_it_chooses() -> None:
    desk = Desk({"a": 4, "b": 4})
    desk.reroute(["a", "b"], strategy=LoadBalanceStrategy.ROUND_ROBIN)
    assert [desk.where(desk.submit()) for _ in range(6)] == ["a", "b"] * 3


# sources in several pools


def test_a_sources_limits_hold_over_all_its_pools() -> None:
    desk = Desk()
    second = desk.new_pool("second")
    desk.add("a", Limits(max_concurrency=3, rpm=60), pools=[desk.pool, second])
    for number in range(20):
        desk.submit(pool=second if number % 2 else desk.pool)
    assert len(desk.at("a")) == 1
    desk.wait(10.0)
    assert len(desk.at("a")) == 3
    while desk.now < 20.0:
        for attempt in desk.at("a"):
            desk.ok(attempt, after=0.1)
        desk.wait(0.1)
    assert {attempt.task.pool for _, attempt in desk.watch.sends} == {desk.pool, second}
    assert 10 <= len(desk.watch.sends) - 3 <= 12


def test_a_shared_source_pulls_the_most_urgent_of_all_its_pools() -> None:
    desk = Desk()
    second = desk.new_pool("second")
    desk.add("a", Limits(max_concurrency=1), pools=[desk.pool, second])
    desk.submit()
    normal, high, low = desk.submit(5), desk.submit(0, pool=second), desk.submit(9)
    order = []
    for _ in range(3):
        desk.ok(desk.at("a")[0], after=0.1)
        order.append(desk.at("a")[0].task)
    assert order == [high, normal, low]
