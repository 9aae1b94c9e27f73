"""Who may still be sent: calls that would come too late, and calls for which there is no place."""

from __future__ import annotations

from scheduler_driver import Driver
from scheduler_warm import HANGS_ONLY, PACE, live, warm_all

from qreward.errors import NoEndpoint, QueueFull, RequestTimeout
from qreward.scheduler.limits.rate import MINUTE
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.task import TaskState
from qreward.settings.policies import Limits, Retry

K = FailureKind


def test_a_call_for_a_route_without_endpoints_fails_for_that_reason_even_if_none_may_wait() -> None:
    driver = Driver(most_waiting=0)
    assert isinstance(driver.outcome(driver.submit()), NoEndpoint)


def test_an_urgent_batch_gets_slots_while_less_urgent_calls_wait_even_if_calls_fill_all_others() -> None:
    driver = Driver({"a": 10})
    calls = [driver.submit(level=9) for _ in range(20)]
    driver.feed(5, level=0)
    driver.ok(live(calls[0]))
    assert sum(attempt.task.feed is not None for attempt in driver.at("a")) == 1


def test_what_waits_for_a_rate_limit_is_sent_when_the_limit_allows_it_and_not_with_the_next_answer() -> None:
    driver = Driver()
    driver.add("a", Limits(rpm=3, max_concurrency=9))
    for _ in range(4):
        driver.submit(timeout=100.0)
    driver.wait(50.0)
    driver.ok(driver.at("a")[0])
    driver.wait(12.0)
    assert [when for when, _ in driver.watch.sends] == [0.0, 0.0, 0.0, MINUTE]


def test_a_call_that_no_source_can_answer_in_time_is_not_sent() -> None:
    driver = warm_all(Driver({"a": 4, "b": 4}))
    sends = len(driver.watch.sends)
    task = driver.submit(timeout=0.8)
    error = driver.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert "before it was sent" in str(error)
    assert len(driver.watch.sends) == sends
    assert driver.scheduler.next_wake() is None
    assert driver.where(driver.submit(timeout=1.2)) is not None, "a quick answer would come in time"
    unknown = Driver({"a": 4, "b": 4})
    assert unknown.where(unknown.submit(timeout=0.05)) is not None


def test_one_quick_source_in_service_or_one_quick_answer_in_twenty_is_enough_for_a_call_to_be_sent() -> None:
    driver = warm_all(Driver({"quick": 1, "slow": 4}), quick=0.2 * PACE)
    assert driver.where(driver.submit()) == "quick"
    assert driver.where(driver.submit(timeout=0.8)) == "slow"
    driver.mark("quick", down=True)
    assert isinstance(driver.outcome(driver.submit(timeout=0.8)), RequestTimeout)
    mixed = warm_all(Driver({"a": 8, "b": 8}), lengths=[4] + [100] * 9)
    assert mixed.where(mixed.submit(timeout=0.5)) is not None
    assert mixed.outcome(mixed.submit(timeout=0.1)) is not None


def test_a_retry_that_would_come_too_late_is_not_sent_and_its_failure_is_the_cause() -> None:
    driver = warm_all(Driver({"a": 4, "b": 4}))
    task = driver.submit(timeout=2.0)
    driver.fail(live(task), K.TRANSIENT, after=1.5)
    error = driver.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert error.__cause__ is task.last_error is not None
    assert len(driver.path(task)) == 1


def test_when_as_many_wait_as_may_one_more_is_refused_at_once() -> None:
    driver = Driver({"a": 1}, most_waiting=2)
    first, second, third = (driver.submit() for _ in range(3))
    extra = driver.submit()
    error = driver.outcome(extra)
    assert isinstance(error, QueueFull)
    assert "2 requests wait" in str(error)
    assert driver.path(extra) == []
    driver.ok(live(first))
    assert driver.where(second) == "a"
    assert driver.outcome(driver.submit()) is None
    driver.withdraw(third)
    assert driver.outcome(driver.submit()) is None, "who goes away leaves a place"
    no_queue = Driver({"a": 1}, most_waiting=0)
    assert no_queue.where(no_queue.submit()) == "a"
    assert isinstance(no_queue.outcome(no_queue.submit()), QueueFull)


def test_a_call_that_was_taken_in_is_not_refused_when_it_is_tried_again() -> None:
    driver = Driver({"a": 1}, most_waiting=1, retry=Retry(base=0.01))
    first, second = driver.submit(), driver.submit()
    driver.fail(live(first), K.TRANSIENT)
    assert driver.where(second) == "a"
    third = driver.submit()
    driver.wait(0.1)
    assert first.state is third.state is TaskState.QUEUED
    assert isinstance(driver.outcome(driver.submit()), QueueFull)
    driver.ok(live(second))
    assert driver.where(first) == "a", "it goes before those that came later"


def test_a_call_is_not_dropped_as_too_late_while_its_first_attempt_may_still_answer() -> None:
    driver = warm_all(Driver({"a": 1, "b": 1}, hedge=HANGS_ONLY))
    task = driver.submit(timeout=3.0)
    driver.wait(0.9)
    other = driver.submit()
    driver.wait(0.7)
    assert task.state is TaskState.QUEUED
    driver.ok(live(other), after=0.9)
    driver.ok(live(task), after=0.2)
    assert isinstance(driver.outcome(task), Answer)


def test_bulks_neither_fill_the_queue_nor_are_refused() -> None:
    driver = Driver({"a": 1}, most_waiting=1)
    driver.feed(40)
    assert driver.outcome(driver.submit()) is None
    assert isinstance(driver.outcome(driver.submit()), QueueFull)
    driver.feed(40)
    assert not any(task.feed for task in driver.watch.finished)
