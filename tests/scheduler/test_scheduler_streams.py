"""What the scheduler does with answers that are given out in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_desk import Desk
from scheduler_warm import HANGS_ONLY, copy, live, warm

from qreward.errors import RequestTimeout, ServerError
from qreward.scheduler.limits.concurrency import FixedLimit
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.state import Attempt
from qreward.scheduler.stats import FIRST_LEAST, FIRST_MOST, GAP_LEAST, GAP_MOST, KNOWN, StreamTiming
from qreward.settings.policies import Hedge


@given(st.floats(0, 1e4), st.integers(0, 50), st.integers(0, 9))
def test_limits_stay_within_their_bounds_whatever_is_seen(seconds: float, times: int, overdue: int) -> None:
    tempo = StreamTiming()
    for _ in range(times):
        tempo.began(seconds)
    tempo.went_on([seconds] * times)
    limit = tempo.first_limit(overdue)
    assert limit is None if times < KNOWN else limit is not None and FIRST_LEAST <= limit <= FIRST_MOST
    assert GAP_LEAST <= tempo.gap_limit() <= GAP_MOST


def test_a_task_that_ran_into_a_limit_has_more_time_the_next_time() -> None:
    tempo = StreamTiming()
    for _ in range(KNOWN):
        tempo.began(3.0)
    once, twice = tempo.first_limit(0), tempo.first_limit(1)
    assert once is not None
    assert twice == 2 * once


def commit(desk: Desk, attempt: Attempt) -> bool:
    desk.scheduler.commit(desk.now, attempt)
    desk._after()
    return attempt.committed


def test_of_two_attempts_the_first_to_begin_is_kept_and_the_other_stopped() -> None:
    desk = Desk({"a": 4, "b": 4}, hedge=Hedge(after=2.0))
    task = desk.submit()
    desk.wait(2.1)
    first, second = live(task), copy(task)
    assert commit(desk, second)
    assert desk.is_cancelled(first)
    assert not commit(desk, first)
    desk.cancelled(first)
    assert desk.outcome(task) is None
    desk.ok(second)
    assert isinstance(desk.outcome(task), Answer)
    assert desk["a"].inflight == desk["b"].inflight == 0


def test_a_failure_after_the_beginning_is_final_and_nothing_begins_after_the_task_has_ended() -> None:
    desk = Desk({"a": 1, "b": 1})
    task = desk.submit()
    attempt = live(task)
    assert commit(desk, attempt)
    desk.fail(attempt, FailureKind.TRANSIENT)
    assert isinstance(desk.outcome(task), ServerError)
    assert len(desk.path(task)) == 1
    assert attempt.source.tally.failed == 1
    task = desk.submit(timeout=1.0)
    attempt = live(task)
    desk.wait(2.0)
    assert isinstance(desk.outcome(task), RequestTimeout)
    assert not commit(desk, attempt)
    desk.cancelled(attempt)


def test_a_task_that_restarts_goes_elsewhere() -> None:
    for kind in (FailureKind.OVERLOADED, FailureKind.TRANSIENT, FailureKind.TIMEOUT):
        desk = Desk({"a": 1, "b": 1})
        task = desk.task()
        task.restarts = True
        desk.scheduler.submit(desk.now, task)
        desk._after()
        (attempt,) = desk.at("a") + desk.at("b")
        assert commit(desk, attempt)
        desk.fail(attempt, kind)
        desk.wait(1.0)
        assert sorted(desk.path(task)) == ["a", "b"], kind


@pytest.mark.parametrize("restarts", [False, True])
def test_what_waits_for_a_copy_waits_no_more_when_its_answer_begins(restarts: bool) -> None:
    desk = Desk({"a": 1, "b": 1}, hedge=HANGS_ONLY)
    warm(desk, "a")
    task, other = desk.submit(), desk.submit()
    if desk.where(task) == "b":
        task, other = other, task
    task.restarts = restarts
    desk.wait(1.6)
    assert task.queued
    first = live(task)
    assert commit(desk, first)
    assert not task.queued
    desk.ok(live(other))
    desk.wait(10.0)
    assert desk.path(task) == [first.source.name]
    if restarts:
        desk.fail(first, FailureKind.TRANSIENT)
        desk.wait(10.0)
        assert len(desk.path(task)) == 2
        first = live(task)
    desk.ok(first)
    assert isinstance(desk.outcome(task), Answer)


def test_a_wait_for_the_caller_is_not_the_sources() -> None:
    """Where it is most of the time, the answer says nothing of the limit either."""

    class Listening(FixedLimit):
        answers = 0

        def ok(self, *_: object) -> None:
            self.answers += 1

    for held, answers, mean in ((0.0, 1, 100.0), (1.0, 1, 99.0), (99.0, 0, 1.0)):
        desk, window = Desk(), Listening(8)
        source = desk.add("a", window=window)
        attempt = live(desk.submit())
        assert commit(desk, attempt)
        attempt.held = held
        desk.ok(attempt, after=100.0)
        assert source.latency.mean == pytest.approx(mean)
        assert window.answers == answers


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_is_left_late_says_nothing_against_its_source(begun: bool) -> None:
    desk = Desk({"a": 1, "b": 1})
    warm(desk, "a")
    desk.mark("b", down=True)
    for _ in range(5):
        task = desk.submit()
        attempt = live(task)
        if begun:
            assert commit(desk, attempt)
        desk.wait(9.0)
        desk.withdraw(task)
        desk.cancelled(attempt)
    assert desk["a"].health.clean is begun


def test_a_first_token_is_a_sign_of_life() -> None:
    desk = Desk({"a": 4})
    tasks = [desk.submit() for _ in range(3)]
    desk.wait(2.0)
    assert desk["a"].silence.since < desk.now
    assert commit(desk, live(tasks[0]))
    assert desk["a"].silence.since == desk.now
