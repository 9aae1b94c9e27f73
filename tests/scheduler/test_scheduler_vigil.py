"""What is under way is looked at: attempts that hang are copied, overdue ones stopped, and a late clock blames nobody."""

from __future__ import annotations

import pytest
from scheduler_desk import Desk
from scheduler_warm import HANGS_ONLY, PACE, copy, live, warm, warm_all

from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.state import ATTEMPT_LEAST, CancelReason, Task, TaskState
from qreward.settings.policies import Hedge, Retry

K = FailureKind
HUNG = 1.25
"""Seconds after which an attempt is suspected where answers take one: 1.3 times, as exactly as lengths are known."""
STALL = 0.1
"""Seconds by which a tick may be late before nothing is held against anybody, and for which it then is not."""


def hang(desk: Desk, name: str) -> Task:
    """A task that was sent to a source, which is not going to answer."""
    others = [other for other in desk.sources if other != name and not desk[other].health.marked_unhealthy]
    for other in others:
        desk.mark(other, down=True)
    task = desk.submit()
    for other in others:
        desk.mark(other, down=False)
    assert desk.where(task) == name
    return task


# attempts that hang


def test_an_attempt_far_longer_than_the_longest_answers_at_its_sources_pace_is_copied() -> None:
    for name, seconds, bulk in (("a", HUNG, False), ("b", 3 * HUNG, False), ("a", HUNG, True)):
        desk = warm_all(Desk({"a": 4, "b": 4}, hedge=HANGS_ONLY), b=3 * PACE)
        if bulk:
            desk.feed(1)
            [attempt] = desk.at(name)
            task = attempt.task
        else:
            task = hang(desk, name)
        desk.wait(0.95 * seconds)
        assert task.copy is None
        desk.wait(0.05 * seconds + 0.3)
        assert copy(task).source.name != name
        assert task.suspected == 1
        desk.ok(copy(task))
        assert isinstance(desk.outcome(task), Answer)
    unknown = warm_all(Desk({"a": 4, "b": 4}, hedge=HANGS_ONLY), answers=48)
    task = hang(unknown, "a")
    unknown.wait(9.0)
    assert task.copy is None, "too little is known to suspect anything"


def test_it_is_the_length_that_one_in_a_thousand_exceeds_not_the_usual_one() -> None:
    desk = warm_all(Desk({"a": 8, "b": 8}, hedge=HANGS_ONLY), lengths=[20] * 127 + [100])
    task = hang(desk, "a")
    slow = desk.pool.lengths.seconds_per_token(desk["a"].latency) * 100
    desk.wait(1.1 * slow)
    assert task.copy is None
    desk.wait(0.5 * slow)
    assert task.copy is not None


def test_a_source_that_never_answered_is_given_four_times_the_slowest_pace() -> None:
    desk = Desk({"a": 4, "b": 4, "c": 4}, hedge=HANGS_ONLY)
    warm(desk, "a")
    warm(desk, "b", pace=2 * PACE)
    task = hang(desk, "c")
    desk.wait(4 * 2 * HUNG - 0.2)
    assert task.copy is None
    desk.wait(2.6)
    assert task.copy is not None


def test_what_seems_to_hang_goes_ahead_of_work_that_waits() -> None:
    desk = warm_all(Desk({"a": 1, "b": 1}, hedge=HANGS_ONLY))
    hung = hang(desk, "a")
    desk.wait(0.5)
    other = hang(desk, "b")
    waiting = [desk.submit() for _ in range(3)]
    desk.feed(3)
    desk.wait(1.0)
    assert hung.state is TaskState.QUEUED
    assert other.copy is None
    desk.ok(live(other), after=0.0)
    assert copy(hung).source.name == "b"
    assert all(task.attempt is None for task in waiting)


def test_the_first_attempt_goes_on_until_its_own_time_limit() -> None:
    desk = warm_all(Desk({"a": 4, "b": 4, "c": 4}, hedge=HANGS_ONLY))
    task = hang(desk, "a")
    first = live(task)
    desk.wait(ATTEMPT_LEAST - 0.1)
    assert len(desk.path(task)) > 1
    assert not desk.is_cancelled(first)
    desk.wait(0.5)
    assert desk.is_cancelled(first)
    assert first.cancel_reason is CancelReason.OVERDUE


def test_a_copy_that_hangs_as_well_makes_way_for_a_third_source() -> None:
    desk = warm_all(Desk({"a": 4, "b": 4, "c": 4}, hedge=HANGS_ONLY))
    task = hang(desk, "a")
    desk.wait(2.0)
    second = copy(task)
    while not desk.is_cancelled(second):
        desk.wait(0.1)
    waited = desk.now - second.sent_at
    assert waited == pytest.approx(2 * 2 * HUNG, rel=0.1), "it is given twice what made it necessary, which has doubled"
    assert not desk.is_cancelled(live(task))
    desk.cancelled(second)
    assert live(task).source.name == "a"
    desk.wait(1.4)
    assert len(set(desk.path(task))) == 3
    desk.ok(copy(task), after=0.5)
    assert isinstance(desk.outcome(task), Answer)


def test_of_two_attempts_that_seem_to_hang_the_one_that_has_done_more_goes_on() -> None:
    desk = warm_all(Desk({"slow": 4, "quick": 4}, hedge=HANGS_ONLY), slow=3 * PACE)
    task = hang(desk, "slow")
    first = live(task)
    desk.wait(3 * HUNG + 0.5)
    second = copy(task)
    while not desk.is_cancelled(first):
        desk.wait(0.1)
    assert desk.now - second.sent_at == pytest.approx(2 * 2 * HUNG, rel=0.1)
    assert not desk.is_cancelled(second)
    desk.cancelled(first)
    desk.ok(second, after=0.1)
    assert isinstance(desk.outcome(task), Answer)


@pytest.mark.parametrize("other", ["slow", "new"])
def test_what_seems_to_hang_waits_for_a_quick_source_rather_than_go_to_one_that_is_slow_or_unknown(other: str) -> None:
    desk = Desk({"a": 4, "quick": 1, other: 4}, hedge=HANGS_ONLY)
    for name in ("a", "quick"):
        warm(desk, name)
    if other == "slow":
        warm(desk, other, pace=2 * PACE)
    busy, task = hang(desk, "quick"), hang(desk, "a")
    desk.wait(1.1 * HUNG)
    assert (task.state, task.copy) == (TaskState.QUEUED, None)
    desk.ok(live(busy), after=0.0)
    assert copy(task).source.name == "quick"


def test_the_time_doubles_with_each_suspicion_of_the_same_task() -> None:
    desk = warm_all(Desk({"a": 4, "b": 4, "c": 4}, hedge=HANGS_ONLY, retry=Retry(attempts=9)))
    task = hang(desk, "a")
    began = desk.now
    for number in range(3):
        limit = HUNG * 2**number
        desk.until(began + 0.95 * limit)
        assert task.suspected == number
        desk.until(began + limit + 0.4)
        assert task.suspected == number + 1
        desk.fail(copy(task), K.OVERLOADED)


def test_a_task_that_hangs_is_copied_as_long_as_a_try_is_left_for_the_copy() -> None:
    for attempts, fails in ((1, 0), (2, 1), (3, 2), (2, 0)):
        desk = warm_all(Desk({"a": 4, "b": 4}, hedge=HANGS_ONLY, retry=Retry(attempts=attempts, base=0.01)))
        task = desk.submit()
        for _ in range(fails):
            desk.fail(live(task), K.TRANSIENT)
            desk.wait(0.1)
        desk.wait(2.0 if attempts > fails + 1 else 8.0)
        assert len(desk.path(task)) == 1 + fails + (attempts > fails + 1), (attempts, fails)


def test_a_suspicion_is_held_until_a_source_is_there_costs_nothing_before_and_stays_within_the_budget() -> None:
    desk = warm_all(Desk({"a": 4, "b": 4}, hedge=Hedge(after=1000.0, reserve=1, budget=0.0)))
    task, other = hang(desk, "a"), hang(desk, "a")
    desk.mark("b", down=True)
    desk.wait(3.0)
    assert task.suspected == 0
    assert task.state is TaskState.SENT
    desk.mark("b", down=False)
    desk.wait(5.0)
    assert copy(task).source.name == "b"
    assert other.copy is None
    assert other.suspected == 0


# time limits


def test_a_time_limit_that_an_operator_has_set_holds_for_copies_too() -> None:
    desk = Desk({"a": 4}, hedge=Hedge(after=2.0))
    desk.add("b", attempt_timeout=3.0)
    task = hang(desk, "a")
    desk.wait(2.5)
    second = copy(task)
    desk.until(second.sent_at + 2.9)
    assert not desk.is_cancelled(second)
    desk.wait(0.5)
    assert desk.is_cancelled(second)
    desk.cancelled(second)
    assert desk.where(task) == "a"


# a clock that comes late


def late(desk: Desk, seconds: float) -> None:
    """The loop was busy: a tick comes so much later than it was asked for."""
    wake = desk.scheduler.next_wake()
    assert wake is not None
    desk.now = wake + seconds
    desk.tick()


def test_after_a_stall_nothing_is_held_against_an_attempt_until_answers_could_be_read() -> None:
    """Neither overdue, nor suspected, nor hedged. A little late is no stall."""
    for hedge, seconds in ((None, 60.0), (Hedge(), 5.0)):
        desk = warm_all(Desk({"a": 4, "b": 4}, hedge=hedge))
        task = hang(desk, "a")
        late(desk, seconds)
        desk.wait(STALL - 0.02)
        assert not desk.is_cancelled(live(task))
        assert task.copy is None
        desk.wait(0.05)
        assert desk.is_cancelled(live(task)) if hedge is None else task.copy is not None
    desk = Desk({"a": 4, "b": 4}, hedge=Hedge(after=2.0))
    task = hang(desk, "a")
    late(desk, 0.9 * STALL)
    assert task.copy is not None


def test_after_a_stall_waiting_work_is_still_sent_at_once() -> None:
    desk = Desk({"a": 4}, retry=Retry(base=0.5))
    task = desk.submit()
    desk.fail(live(task), K.TRANSIENT)
    assert task.attempt is None
    late(desk, 5.0)
    assert desk.where(task) == "a"
