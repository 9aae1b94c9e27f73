"""The life of a task: sent or queued, pulled, answered once, timed out, withdrawn; and bulks that are read as they are needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_desk import CHUNK, ERRORS, Desk
from scheduler_watch import BUCKET

from qreward.errors import RequestTimeout, ServerError
from qreward.scheduler.outcome import CANCELLED, Answer, FailureKind
from qreward.scheduler.scheduler import FINISH, SEND, Scheduler
from qreward.scheduler.state import LOW, Attempt, Task, TaskState
from qreward.settings.policies import Limits, Priority, Retry

K = FailureKind


def live(task: Task) -> Attempt:
    assert task.attempt is not None
    return task.attempt


# a task and its attempt


def test_a_task_is_sent_at_once_if_a_source_has_room_and_its_answer_comes_with_source_and_seconds() -> None:
    desk = Desk({"a": 1})
    task = desk.task()
    scheduler: Scheduler = desk.scheduler
    scheduler.submit(5.0, task)
    [(what, attempt)] = scheduler.out
    scheduler.out = []
    assert what == SEND
    answer = Answer("yes")
    scheduler.event(7.5, attempt, answer)
    assert scheduler.out == [(FINISH, task, answer, desk["a"], 2.5)]
    assert task.state is TaskState.DONE
    assert task.attempt is None


def test_a_task_waits_while_all_are_full_and_is_pulled_by_the_first_with_room() -> None:
    desk = Desk({"a": 1, "b": 1})
    desk.submit()
    desk.submit()
    waiting = desk.submit()
    assert desk.where(waiting) is None
    desk.ok(desk.at("b")[0])
    assert desk.where(waiting) == "b"


def test_a_waiting_source_pulls_in_the_order_of_priority() -> None:
    desk = Desk({"a": 1})
    desk.submit()
    low, normal, high = (desk.submit(level) for level in (Priority.LOW, Priority.NORMAL, Priority.HIGH))
    order = []
    for _ in range(3):
        desk.ok(desk.at("a")[0], after=0.1)
        order.append(desk.at("a")[0].task)
    assert order == [high, normal, low]


def test_a_retried_task_goes_before_those_that_came_after_it() -> None:
    desk = Desk({"a": 1}, retry=Retry(base=0.01))
    first = desk.submit()
    second, third = desk.submit(), desk.submit()
    desk.fail(live(first), K.TRANSIENT)
    desk.wait(1.0)
    assert desk.where(second) == "a"
    desk.ok(live(second))
    assert desk.where(first) == "a"
    assert desk.where(third) is None


@pytest.mark.parametrize("size", [1, 40, 1000])
def test_tasks_at_the_head_that_avoid_a_source_do_not_keep_it_idle(size: int) -> None:
    desk = Desk({"a": 50, "b": 1}, thorough=size < 1000)
    desk.mark("a", down=True)
    blocker = desk.submit()
    desk.mark("a", down=False)
    for _ in range(size):
        task = desk.submit()
        desk.fail(live(task), K.TRANSIENT, after=0.0)
        desk["a"].health.restore()
        assert desk.where(task) is None, "it waits for b"
    assert desk.where(desk.submit()) == "a"
    desk.ok(live(blocker))
    assert len(desk.at("b")) == 1


def test_reports_after_the_first_are_ignored() -> None:
    desk = Desk({"a": 1})
    task, waiting = desk.submit(), desk.submit()
    attempt = live(task)
    desk.ok(attempt)
    before = list(desk.watch.trace)
    desk.ok(attempt)
    desk.fail(attempt, K.OVERLOADED, retry_after=9.0)
    desk.cancelled(attempt)
    assert desk.watch.trace == before
    assert desk["a"].inflight == 1
    assert desk["a"].tally.ok == 1
    assert desk.where(waiting) == "a"


def test_the_answer_of_an_attempt_that_nobody_waits_for_only_frees_the_slot() -> None:
    desk = Desk({"a": 1})
    task = desk.submit()
    attempt = live(task)
    desk.withdraw(task)
    desk.ok(attempt)
    assert desk.outcome(task) is None
    assert desk["a"].inflight == 0


def test_an_answer_in_the_same_turn_as_the_timeout_counts_if_it_is_told_first() -> None:
    desk = Desk({"a": 1})
    task = desk.submit(timeout=1.0)
    attempt = live(task)
    desk.now = 1.0
    desk.report(attempt, Answer("yes"))
    desk.tick()
    assert isinstance(desk.outcome(task), Answer)
    assert desk.scheduler.next_wake() is None


# time limits


def test_a_tasks_timeout_counts_waiting_in_the_queue() -> None:
    desk = Desk({"a": 1})
    desk.submit()
    waiting = desk.submit(timeout=10.0)
    desk.until(9.9)
    assert desk.outcome(waiting) is None
    desk.until(10.0 + BUCKET)
    error = desk.outcome(waiting)
    assert isinstance(error, RequestTimeout)
    assert "10 s" in str(error)
    assert "never sent" in str(error)


def test_a_tasks_timeout_counts_queue_attempts_and_back_off_together() -> None:
    desk = Desk({"a": 1}, retry=Retry(base=3.0, attempts=9))
    first, task = desk.submit(), desk.submit(timeout=10.0)
    desk.ok(live(first), after=4.0)
    desk.fail(live(task), K.TRANSIENT, after=4.0)
    desk.until(10.0 + BUCKET)
    error = desk.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert error.__cause__ is ERRORS[K.TRANSIENT]
    assert "it broke" in str(error)


def test_a_timeout_stops_the_attempt_and_the_slot_comes_back_when_the_connection_is_closed() -> None:
    desk = Desk({"a": 1})
    task, waiting = desk.submit(timeout=5.0), desk.submit()
    attempt = live(task)
    desk.until(5.1)
    assert isinstance(desk.outcome(task), RequestTimeout)
    assert desk.is_cancelled(attempt)
    assert desk["a"].inflight == 1
    assert desk.where(waiting) is None
    desk.cancelled(attempt)
    assert desk.where(waiting) == "a"


def test_a_task_that_waits_to_be_tried_again_times_out_on_time() -> None:
    desk = Desk({"a": 1}, retry=Retry(base=8.0, attempts=9), seed=4)
    task = desk.submit(timeout=0.2)
    desk.fail(live(task), K.TRANSIENT)
    assert task.state is TaskState.WAITING
    desk.until(0.2 + BUCKET)
    assert isinstance(desk.outcome(task), RequestTimeout)


def test_without_a_timeout_a_task_waits_for_ever() -> None:
    desk = Desk({"a": 1})
    desk.mark("a", down=False)
    desk["a"].health.eject(0.0, 1e7)
    task = desk.submit()
    desk.wait(9e6)
    assert desk.outcome(task) is None
    desk.wait(2e6)
    assert desk.where(task) == "a"


# withdrawal


def test_a_withdrawn_task_is_never_heard_of_again() -> None:
    desk = Desk({"a": 1})
    under_way, waiting = desk.submit(timeout=9.0), desk.submit(timeout=9.0)
    attempt = live(under_way)
    desk.withdraw(waiting)
    desk.withdraw(under_way)
    assert desk.is_cancelled(attempt)
    assert desk["a"].inflight == 1, "the slot is held until the connection is closed"
    desk.cancelled(attempt)
    desk.wait(100.0)
    assert not desk.watch.finished
    desk.watch.check_all_over()


def test_withdrawing_what_is_done_does_nothing() -> None:
    desk = Desk({"a": 1})
    task = desk.submit()
    desk.ok(live(task))
    before = list(desk.watch.trace)
    desk.withdraw(task, task)
    assert desk.watch.trace == before


def test_a_withdrawn_task_that_was_overdue_is_cancelled_once() -> None:
    desk = Desk({"a": 1})
    task = desk.submit()
    attempt = live(task)
    desk.wait(121.0)
    desk.withdraw(task)
    desk.cancelled(attempt)
    desk.watch.check_all_over()


# overload


def test_after_a_hint_nothing_is_sent_until_it_has_passed_then_one_probe_then_all() -> None:
    desk = Desk({"a": 8})
    tasks = [desk.submit() for _ in range(20)]
    desk.fail(desk.at("a")[0], K.OVERLOADED, after=0.1, retry_after=7.0)
    for attempt in desk.at("a"):
        desk.fail(attempt, K.OVERLOADED, after=0.0)
    desk.until(7.09)
    assert not desk.at("a")
    desk.until(7.1 + BUCKET)
    assert len(desk.at("a")) == 1
    desk.ok(desk.at("a")[0], after=0.01)
    assert len(desk.at("a")) == 8
    assert desk.at("a")[0].task is not tasks[-1]


def test_a_rate_is_kept_and_used_up() -> None:
    desk = Desk()
    desk.add("a", Limits(rpm=600, max_concurrency=1000))
    for _ in range(100):
        desk.submit()
    desk.until(9.0)
    assert 90 <= len(desk.at("a")) <= 92


def test_a_machine_that_slept_for_an_hour_does_not_make_up_for_it() -> None:
    desk = Desk()
    desk.add("a", Limits(rpm=600, max_concurrency=1000))
    for _ in range(200):
        desk.submit()
    before = len(desk.at("a"))
    desk.now += 3600
    desk.tick()
    assert len(desk.at("a")) - before <= 2


# bulks


def test_a_bulk_is_read_as_it_is_needed() -> None:
    desk = Desk({"a": 3}, refill=False)
    feed = desk.feed(1000)
    for _ in range(300):
        while desk.watch.asked:
            desk.serve(feed)
        assert len(feed.buffer) <= CHUNK + LOW
        desk.ok(desk.at("a")[0], after=0.1)
    assert len(desk.watch.finished) == 300


def test_a_bulk_is_not_asked_again_before_it_has_answered_nor_after_it_has_ended() -> None:
    desk = Desk({"a": 3}, refill=False)
    feed = desk.feed(5)
    desk.serve(feed)
    assert feed.ended
    while desk.watch.live:
        desk.ok(desk.at("a")[0])
    assert not desk.watch.asked
    assert len(desk.watch.finished) == 5


def test_reading_more_gives_work_to_all_idle_sources_not_only_the_one_that_asked() -> None:
    desk = Desk(dict.fromkeys("abcd", 4), refill=False)
    feed = desk.feed(100)
    desk.serve(feed, most=9)
    while desk.watch.live:
        desk.ok(next(iter(desk.watch.live)), after=0.1)
    assert desk.watch.asked
    desk.serve(feed, most=32)
    assert [len(desk.at(name)) for name in "abcd"] == [4, 4, 4, 4]


def test_a_source_that_found_nothing_for_it_in_a_bulk_takes_the_next_task() -> None:
    """Only what avoids it was left; it must not be forgotten for that."""
    desk = Desk({"a": 9, "b": 1})
    desk.mark("a", down=True)
    desk.submit()
    desk.mark("a", down=False)
    avoiding = desk.submit()
    desk.fail(live(avoiding), K.TRANSIENT)
    desk.feed(1)
    assert [attempt.task is avoiding for attempt in desk.at("a")] == [False]
    assert desk.where(desk.submit()) == "a"


def test_the_timeout_of_a_bulks_task_begins_when_it_is_taken() -> None:
    desk = Desk({"a": 1})
    desk.feed(3, timeout=10.0)
    desk.ok(desk.at("a")[0], after=9.0)
    desk.ok(desk.at("a")[0], after=9.0)
    desk.ok(desk.at("a")[0], after=9.0)
    assert len(desk.watch.finished) == 3
    assert all(isinstance(outcome, Answer) for outcome in desk.watch.finished.values())


def test_two_bulks_of_one_level_share_the_sources() -> None:
    desk = Desk({"a": 1})
    first, second = desk.feed(100), desk.feed(100)
    assert first.pool is second.pool
    counts = [0, 0]
    for _ in range(40):
        attempt = desk.at("a")[0]
        counts[attempt.task.index > 100] += 1
        desk.ok(attempt)
    assert abs(counts[0] - counts[1]) <= 2


def test_a_single_task_goes_before_a_bulk_that_was_there_first() -> None:
    desk = Desk({"a": 1})
    desk.feed(100)
    desk.wait(30.0)
    single = desk.submit()
    desk.ok(desk.at("a")[0])
    assert desk.where(single) == "a"


def test_a_closed_bulk_returns_what_was_read_ahead_and_never_started() -> None:
    desk = Desk({"a": 2})
    feed = desk.feed(20)
    rest = desk.close_feed(feed)
    assert len(rest) == 18
    assert all(task.state is TaskState.NEW for task in rest)
    while desk.watch.live:
        desk.ok(desk.at("a")[0])
    assert len(desk.watch.finished) == 2
    desk.watch.check_all_over()


def test_a_bulk_that_is_closed_while_it_is_being_read_is_over() -> None:
    desk = Desk({"a": 2}, refill=False)
    feed = desk.feed(20)
    assert desk.close_feed(feed) == []
    desk.serve(feed)
    assert not desk.watch.live
    assert desk.scheduler.next_wake() is None


def test_a_whole_batch_that_is_withdrawn_stops_all_its_attempts() -> None:
    desk = Desk({"a": 4, "b": 4})
    feed = desk.feed(100)
    rest = desk.close_feed(feed)
    attempts = list(desk.watch.live)
    desk.withdraw(*rest, *[attempt.task for attempt in attempts])
    assert all(desk.is_cancelled(attempt) for attempt in attempts)
    for attempt in attempts:
        desk.cancelled(attempt)
    desk.watch.check_all_over()
    assert not desk.watch.finished


# robustness


def test_a_tick_too_early_too_late_or_twice_does_no_harm() -> None:
    desk = Desk({"a": 1}, retry=Retry(base=1.0))
    task = desk.submit(timeout=5.0)
    desk.fail(live(task), K.TRANSIENT)
    desk.tick()
    desk.tick()
    desk.now += 100
    desk.tick()
    desk.tick()
    assert isinstance(desk.outcome(task), RequestTimeout)
    desk.watch.check_all_over()


@given(st.permutations(range(6)), st.lists(st.sampled_from(["ok", "fail", "cancel"]), min_size=6, max_size=6))
def test_simultaneous_ends_may_be_reported_in_any_order(order: list[int], ends: list[str]) -> None:
    desk = Desk({"a": 2, "b": 2, "c": 2}, retry=Retry(attempts=1))
    tasks = [desk.submit() for _ in range(6)]
    attempts = [live(task) for task in tasks]
    for index in order:
        outcome = {"ok": Answer("yes"), "cancel": CANCELLED}.get(ends[index])
        if outcome is None:
            desk.fail(attempts[index], K.TRANSIENT, after=0.0)
        else:
            desk.report(attempts[index], outcome)  # type: ignore[arg-type]
    assert all((ends[index] == "ok") == isinstance(desk.outcome(task), Answer) for index, task in enumerate(tasks))
    assert all((ends[index] == "fail") == isinstance(desk.outcome(task), ServerError) for index, task in enumerate(tasks))
