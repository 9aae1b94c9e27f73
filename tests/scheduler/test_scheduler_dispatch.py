"""Who may still be sent: calls that would come too late, calls for which there is no place, and slots kept for single ones."""

from __future__ import annotations

from scheduler_desk import Desk
from scheduler_warm import HANGS_ONLY, PACE, live, warm_all

from qreward.errors import QueueFull, RequestTimeout
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.scheduler import LOOK_LATER
from qreward.scheduler.state import LEAST_WINDOW, TaskState, reserve
from qreward.settings.policies import Retry

K = FailureKind


# too late to be of use


def test_a_call_that_no_source_can_answer_in_time_is_not_sent() -> None:
    desk = warm_all(Desk({"a": 4, "b": 4}))
    sends = len(desk.watch.sends)
    task = desk.submit(timeout=0.8)
    error = desk.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert "before it was sent" in str(error)
    assert len(desk.watch.sends) == sends
    assert desk.scheduler.next_wake() is None
    assert desk.where(desk.submit(timeout=1.2)) is not None, "a quick answer would come in time"
    unknown = Desk({"a": 4, "b": 4})
    assert unknown.where(unknown.submit(timeout=0.05)) is not None


def test_it_is_the_quickest_five_percent_that_count_not_the_mean() -> None:
    desk = warm_all(Desk({"a": 8, "b": 8}), lengths=[4] + [100] * 9)
    assert desk["a"].latency.mean > 4
    assert desk.where(desk.submit(timeout=0.5)) is not None
    assert desk.outcome(desk.submit(timeout=0.1)) is not None


def test_one_quick_source_is_enough_for_a_call_to_be_sent_and_it_counts_only_while_it_is_in_service() -> None:
    desk = warm_all(Desk({"quick": 1, "slow": 4}), quick=0.2 * PACE)
    assert desk.where(desk.submit()) == "quick"
    assert desk.where(desk.submit(timeout=0.8)) == "slow"
    desk.mark("quick", down=True)
    assert isinstance(desk.outcome(desk.submit(timeout=0.8)), RequestTimeout)


def test_a_call_whose_time_ran_down_in_the_queue_leaves_its_slot_to_the_next() -> None:
    desk = warm_all(Desk({"a": 1}))
    first = desk.submit()
    short, long = desk.submit(timeout=1.5), desk.submit(timeout=9.0)
    desk.ok(live(first), after=1.0)
    assert isinstance(desk.outcome(short), RequestTimeout)
    assert desk.path(short) == []
    assert desk.where(long) == "a"


def test_a_retry_that_would_come_too_late_is_not_sent_and_its_failure_is_told() -> None:
    desk = warm_all(Desk({"a": 4, "b": 4}))
    task = desk.submit(timeout=2.0)
    desk.fail(live(task), K.TRANSIENT, after=1.5)
    error = desk.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert error.__cause__ is task.last_error is not None
    assert len(desk.path(task)) == 1


# no place in the queue


def test_when_as_many_wait_as_may_one_more_is_refused_at_once() -> None:
    desk = Desk({"a": 1}, most_waiting=2)
    first, second, third = (desk.submit() for _ in range(3))
    extra = desk.submit()
    error = desk.outcome(extra)
    assert isinstance(error, QueueFull)
    assert "2 requests wait" in str(error)
    assert desk.path(extra) == []
    desk.ok(live(first))
    assert desk.where(second) == "a"
    assert desk.outcome(desk.submit()) is None
    desk.withdraw(third)
    assert desk.outcome(desk.submit()) is None, "who goes away leaves a place"
    no_queue = Desk({"a": 1}, most_waiting=0)
    assert no_queue.where(no_queue.submit()) == "a"
    assert isinstance(no_queue.outcome(no_queue.submit()), QueueFull)


def test_a_call_that_was_taken_in_is_not_refused_when_it_is_tried_again() -> None:
    desk = Desk({"a": 1}, most_waiting=1, retry=Retry(base=0.01))
    first, second = desk.submit(), desk.submit()
    desk.fail(live(first), K.TRANSIENT)
    assert desk.where(second) == "a"
    third = desk.submit()
    desk.wait(0.1)
    assert first.state is third.state is TaskState.QUEUED
    assert isinstance(desk.outcome(desk.submit()), QueueFull)
    desk.ok(live(second))
    assert desk.where(first) == "a", "it goes before those that came later"


def test_a_call_is_not_dropped_as_too_late_while_its_first_attempt_may_still_answer() -> None:
    desk = warm_all(Desk({"a": 1, "b": 1}, hedge=HANGS_ONLY))
    task = desk.submit(timeout=3.0)
    desk.wait(0.9)
    other = desk.submit()
    desk.wait(0.7)
    assert task.state is TaskState.QUEUED
    desk.ok(live(other), after=0.9)
    desk.ok(live(task), after=0.2)
    assert isinstance(desk.outcome(task), Answer)


def test_bulks_neither_fill_the_queue_nor_are_refused() -> None:
    desk = Desk({"a": 1}, most_waiting=1)
    desk.feed(40)
    assert desk.outcome(desk.submit()) is None
    assert isinstance(desk.outcome(desk.submit()), QueueFull)
    desk.feed(40)
    assert not any(task.feed for task in desk.watch.finished)


# slots kept for single calls


def test_a_tenth_of_a_window_is_kept_for_single_calls_if_there_are_any_unless_the_window_is_small() -> None:
    for window, kept in ((1, 0), (LEAST_WINDOW - 1, 0), (LEAST_WINDOW, 1), (10, 1), (11, 2), (64, 7)):
        assert reserve(window) == kept
        for singles in (True, False):
            desk = Desk({"a": window})
            if singles:
                desk.submit()
            desk.feed(200)
            assert len(desk.at("a")) == max(1, window - kept * singles), (window, singles)


def test_a_single_call_finds_room_while_a_bulk_uses_all_that_it_may() -> None:
    desk = Desk({"a": 20})
    desk.ok(live(desk.submit()))
    desk.feed(200)
    assert len(desk.at("a")) == 18
    assert not desk.pool.allows_batch(desk.now, desk["a"])
    assert desk.where(desk.submit()) == "a"
    assert desk.where(desk.submit()) == "a"
    assert len(desk.at("a")) == 20
    desk.ok(desk.at("a")[0])
    assert len(desk.at("a")) == 19, "what a bulk gives back is kept, too"


def test_what_was_kept_is_given_back_30_seconds_after_the_last_single_call() -> None:
    desk = Desk({"a": 20})
    desk.ok(live(desk.submit()), after=0.0)
    desk.feed(200)
    desk.wait(30.0 - 1)
    desk.ok(live(desk.submit()), after=0.1)
    desk.wait(30.0 - 0.5)
    assert len(desk.at("a")) == 18
    desk.wait(0.5 + LOOK_LATER + 0.1)
    assert len(desk.at("a")) == 20
