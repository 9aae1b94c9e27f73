"""The life of a task: sent or queued, pulled, answered once, timed out, withdrawn; and bulks that are read as they are needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_desk import CHUNK, ERRORS, Desk
from scheduler_warm import live
from scheduler_watch import BUCKET

from qreward.errors import RequestTimeout, ServerError
from qreward.scheduler.outcome import CANCELLED, Answer, FailureKind
from qreward.scheduler.scheduler import FINISH, SEND, Scheduler
from qreward.scheduler.state import LOW, TaskState
from qreward.settings.policies import Retry

K = FailureKind


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


def test_tasks_at_the_head_that_avoid_a_source_do_not_keep_it_idle() -> None:
    desk = Desk({"a": 50, "b": 1})
    desk.mark("a", down=True)
    blocker = desk.submit()
    desk.mark("a", down=False)
    for _ in range(40):
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


def test_without_a_timeout_a_task_waits_for_ever() -> None:
    desk = Desk({"a": 1})
    desk.mark("a", down=False)
    desk["a"].health.eject(0.0, 1e5)
    task = desk.submit()
    desk.wait(9e4)
    assert desk.outcome(task) is None
    desk.wait(2e4)
    assert desk.where(task) == "a"


# withdrawal


def test_a_withdrawn_task_has_no_outcome_and_its_slot_comes_back_when_its_attempt_has_ended() -> None:
    """It was under way, answered after all, already overdue, waiting, or done."""
    desk = Desk({"a": 3})
    under_way, answered, overdue = desk.submit(timeout=150.0), desk.submit(), desk.submit()
    waiting = desk.submit(timeout=150.0)
    attempts = [live(task) for task in (under_way, answered, overdue)]
    desk.wait(121.0)
    desk.withdraw(waiting, under_way, answered, overdue)
    assert all(desk.is_cancelled(attempt) for attempt in attempts)
    assert desk["a"].inflight == 3, "a slot is held until the connection is closed"
    desk.cancelled(attempts[0])
    desk.ok(attempts[1])
    desk.cancelled(attempts[2])
    desk.wait(100.0)
    assert not desk.watch.finished
    done = desk.submit()
    desk.ok(live(done))
    before = list(desk.watch.trace)
    desk.withdraw(done, done)
    assert desk.watch.trace == before
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


# robustness


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
