"""What the scheduler does with answers that are given out in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import Driver
from scheduler_warm import HANGS_ONLY, copy, live, warm

from qreward.errors import RequestTimeout, ServerError
from qreward.scheduler.limits.concurrency import ConfiguredLimit
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.stats import FIRST_LEAST, FIRST_MOST, GAP_LEAST, GAP_MOST, KNOWN, StreamTiming
from qreward.scheduler.task import Attempt
from qreward.settings.policies import Hedge


@given(st.floats(0, 1e4), st.integers(0, 50), st.integers(0, 9))
def test_limits_stay_within_their_bounds_whatever_is_seen(seconds: float, times: int, overdue: int) -> None:
    timing = StreamTiming()
    for _ in range(times):
        timing.began(seconds)
    timing.went_on([seconds] * times)
    limit, later = timing.first_limit(overdue), timing.first_limit(overdue + 1)
    assert limit == later or (limit is not None and later is not None and limit < later <= 2 * limit)
    assert limit is None if times < KNOWN else limit is not None and FIRST_LEAST <= limit <= FIRST_MOST
    assert GAP_LEAST <= timing.gap_limit() <= GAP_MOST


def commit(driver: Driver, attempt: Attempt) -> bool:
    driver.scheduler.commit(driver.now, attempt)
    driver._after()
    return attempt.committed


def test_of_two_attempts_the_first_to_begin_is_kept_and_the_other_stopped() -> None:
    driver = Driver({"a": 4, "b": 4}, hedge=Hedge(after=2.0))
    task = driver.submit()
    driver.wait(2.1)
    first, second = live(task), copy(task)
    assert commit(driver, second)
    assert driver.is_cancelled(first)
    assert not commit(driver, first)
    driver.cancelled(first)
    assert driver.outcome(task) is None
    driver.ok(second)
    assert isinstance(driver.outcome(task), Answer)
    assert driver["a"].inflight == driver["b"].inflight == 0


def test_a_failure_after_the_beginning_is_final_and_nothing_begins_after_the_task_has_ended() -> None:
    driver = Driver({"a": 1, "b": 1})
    task = driver.submit()
    attempt = live(task)
    assert commit(driver, attempt)
    driver.fail(attempt, FailureKind.TRANSIENT)
    assert isinstance(driver.outcome(task), ServerError)
    assert len(driver.path(task)) == 1
    assert attempt.source.tally.failed == 1
    task = driver.submit(timeout=1.0)
    attempt = live(task)
    driver.wait(2.0)
    assert isinstance(driver.outcome(task), RequestTimeout)
    assert not commit(driver, attempt)
    driver.cancelled(attempt)


def test_a_task_that_restarts_goes_elsewhere() -> None:
    for kind in (FailureKind.OVERLOADED, FailureKind.TRANSIENT, FailureKind.TIMEOUT):
        driver = Driver({"a": 1, "b": 1})
        task = driver.task()
        task.restarts = True
        driver.scheduler.submit(driver.now, task)
        driver._after()
        (attempt,) = driver.at("a") + driver.at("b")
        assert commit(driver, attempt)
        driver.fail(attempt, kind)
        driver.wait(1.0)
        assert sorted(driver.path(task)) == ["a", "b"], kind


@pytest.mark.parametrize("restarts", [False, True])
def test_what_waits_for_a_copy_waits_no_more_when_its_answer_begins(restarts: bool) -> None:
    driver = Driver({"a": 1, "b": 1}, hedge=HANGS_ONLY)
    warm(driver, "a")
    task, other = driver.submit(), driver.submit()
    if driver.where(task) == "b":
        task, other = other, task
    task.restarts = restarts
    driver.wait(1.6)
    assert task.queued
    first = live(task)
    assert commit(driver, first)
    assert not task.queued
    driver.ok(live(other))
    driver.wait(10.0)
    assert driver.path(task) == [first.source.name]
    if restarts:
        driver.fail(first, FailureKind.TRANSIENT)
        driver.wait(1.0)
        assert len(driver.path(task)) == 2
        first = live(task)
    driver.ok(first)
    assert isinstance(driver.outcome(task), Answer)


def test_a_wait_for_the_caller_is_not_the_sources() -> None:
    """Where it is most of the time, the answer says nothing of the limit either."""

    class Listening(ConfiguredLimit):
        answers = 0

        def ok(self, *_: object) -> None:
            self.answers += 1

    for held, answers, mean in ((0.0, 1, 100.0), (1.0, 1, 99.0), (99.0, 0, 1.0)):
        driver, window = Driver(), Listening(8)
        source = driver.add("a", window=window)
        attempt = live(driver.submit())
        assert commit(driver, attempt)
        attempt.held = held
        driver.ok(attempt, after=100.0)
        assert source.latency.mean == pytest.approx(mean)
        assert window.answers == answers


def test_a_configured_time_limit_leaves_out_the_time_in_which_a_stream_waited_for_its_reader() -> None:
    """(begun, seconds held before, still held) -> seconds after which it is cancelled, of 10 s allowed; None for not within 100 s."""
    cases = {
        (False, 0.0, False): 10.0,
        (True, 0.0, False): 10.0,
        (True, 5.0, False): 15.0,
        (True, 5.0, True): None,
        (True, 0.0, True): None,
    }
    wrong = {}
    for (begun, held, holds), expected in cases.items():
        driver = Driver()
        driver.add("a", attempt_timeout=10.0)
        attempt = live(driver.submit())
        assert not begun or commit(driver, attempt)
        attempt.held, attempt.holds_since = held, driver.now if holds else None
        while driver.now < 100.0 and not driver.is_cancelled(attempt):
            driver.wait(0.25)
        found = driver.now if driver.is_cancelled(attempt) else None
        if (found is None) != (expected is None) or (found is not None and expected is not None and not 0 <= found - expected <= 1.5):
            wrong[begun, held, holds] = found
    assert wrong == {}


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_is_left_late_says_nothing_against_its_source(begun: bool) -> None:
    driver = Driver({"a": 1, "b": 1})
    warm(driver, "a")
    driver.mark("b", down=True)
    for _ in range(5):
        task = driver.submit()
        attempt = live(task)
        if begun:
            assert commit(driver, attempt)
        driver.wait(9.0)
        driver.withdraw(task)
        driver.cancelled(attempt)
    assert driver["a"].health.in_service


def test_a_first_token_is_a_sign_of_life() -> None:
    driver = Driver({"a": 4})
    tasks = [driver.submit() for _ in range(3)]
    driver.wait(2.0)
    assert driver["a"].silence.since < driver.now
    assert commit(driver, live(tasks[0]))
    assert driver["a"].silence.since == driver.now
