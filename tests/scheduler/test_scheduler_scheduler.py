"""The life of a task: sent or queued, pulled, answered once, timed out, withdrawn; and bulks that are read as they are needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import CHUNK, ERRORS, Driver
from scheduler_warm import live
from scheduler_watch import BUCKET

from qreward.errors import RequestTimeout, ServerError
from qreward.scheduler.outcome import CANCELLED, Answer, FailureKind
from qreward.scheduler.scheduler import FINISH, SEND, Scheduler
from qreward.scheduler.state import LOW, TaskState
from qreward.settings.policies import Retry

K = FailureKind


# a task and its attempt


def test_a_task_is_sent_at_once_if_a_source_has_a_free_slot_and_its_answer_comes_with_source_and_seconds() -> None:
    driver = Driver({"a": 1})
    task = driver.task()
    scheduler: Scheduler = driver.scheduler
    scheduler.submit(5.0, task)
    [(what, attempt)] = scheduler.out
    scheduler.out = []
    assert what == SEND
    answer = Answer("yes")
    scheduler.event(7.5, attempt, answer)
    assert scheduler.out == [(FINISH, task, answer, driver["a"], 2.5)]
    assert task.state is TaskState.DONE
    assert task.attempt is None


def test_tasks_at_the_head_that_avoid_a_source_do_not_keep_it_idle() -> None:
    driver = Driver({"a": 50, "b": 1})
    driver.mark("a", down=True)
    blocker = driver.submit()
    driver.mark("a", down=False)
    for _ in range(40):
        task = driver.submit()
        driver.fail(live(task), K.TRANSIENT, after=0.0)
        driver["a"].health.restore()
        assert driver.where(task) is None, "it waits for b"
    assert driver.where(driver.submit()) == "a"
    driver.ok(live(blocker))
    assert len(driver.at("b")) == 1


def test_reports_after_the_first_are_ignored() -> None:
    driver = Driver({"a": 1})
    task, waiting = driver.submit(), driver.submit()
    attempt = live(task)
    driver.ok(attempt)
    before = list(driver.watch.trace)
    driver.ok(attempt)
    driver.fail(attempt, K.OVERLOADED, retry_after=9.0)
    driver.cancelled(attempt)
    assert driver.watch.trace == before
    assert driver["a"].inflight == 1
    assert driver["a"].tally.ok == 1
    assert driver.where(waiting) == "a"


def test_an_answer_in_the_same_turn_as_the_timeout_counts_if_it_is_reported_first() -> None:
    driver = Driver({"a": 1})
    task = driver.submit(timeout=1.0)
    attempt = live(task)
    driver.now = 1.0
    driver.report(attempt, Answer("yes"))
    driver.tick()
    assert isinstance(driver.outcome(task), Answer)
    assert driver.scheduler.next_wake() is None


# time limits


def test_a_tasks_timeout_counts_waiting_in_the_queue() -> None:
    driver = Driver({"a": 1})
    driver.submit()
    waiting = driver.submit(timeout=10.0)
    driver.until(9.9)
    assert driver.outcome(waiting) is None
    driver.until(10.0 + BUCKET)
    error = driver.outcome(waiting)
    assert isinstance(error, RequestTimeout)
    assert "10 s" in str(error)
    assert "never sent" in str(error)


def test_a_tasks_timeout_counts_queue_attempts_and_back_off_together() -> None:
    driver = Driver({"a": 1}, retry=Retry(base=3.0, attempts=9))
    first, task = driver.submit(), driver.submit(timeout=10.0)
    driver.ok(live(first), after=4.0)
    driver.fail(live(task), K.TRANSIENT, after=4.0)
    driver.until(10.0 + BUCKET)
    error = driver.outcome(task)
    assert isinstance(error, RequestTimeout)
    assert error.__cause__ is ERRORS[K.TRANSIENT]
    assert "it broke" in str(error)


def test_a_timeout_stops_the_attempt_and_the_slot_comes_back_when_the_connection_is_closed() -> None:
    driver = Driver({"a": 1})
    task, waiting = driver.submit(timeout=5.0), driver.submit()
    attempt = live(task)
    driver.until(5.1)
    assert isinstance(driver.outcome(task), RequestTimeout)
    assert driver.is_cancelled(attempt)
    assert driver["a"].inflight == 1
    assert driver.where(waiting) is None
    driver.cancelled(attempt)
    assert driver.where(waiting) == "a"


def test_without_a_timeout_a_task_waits_for_ever() -> None:
    driver = Driver({"a": 1})
    driver.mark("a", down=False)
    driver["a"].health.eject(0.0, 1e5)
    task = driver.submit()
    driver.wait(9e4)
    assert driver.outcome(task) is None
    driver.wait(2e4)
    assert driver.where(task) == "a"


# withdrawal


def test_a_withdrawn_task_has_no_outcome_and_its_slot_comes_back_when_its_attempt_has_ended() -> None:
    """It was under way, answered after all, already overdue, waiting, or done."""
    driver = Driver({"a": 3})
    under_way, answered, overdue = driver.submit(timeout=150.0), driver.submit(), driver.submit()
    waiting = driver.submit(timeout=150.0)
    attempts = [live(task) for task in (under_way, answered, overdue)]
    driver.wait(121.0)
    driver.withdraw(waiting, under_way, answered, overdue)
    assert all(driver.is_cancelled(attempt) for attempt in attempts)
    assert driver["a"].inflight == 3, "a slot is held until the connection is closed"
    driver.cancelled(attempts[0])
    driver.ok(attempts[1])
    driver.cancelled(attempts[2])
    driver.wait(100.0)
    assert not driver.watch.finished
    done = driver.submit()
    driver.ok(live(done))
    before = list(driver.watch.trace)
    driver.withdraw(done, done)
    assert driver.watch.trace == before
    driver.watch.check_all_over()


# overload


def test_after_a_hint_nothing_is_sent_until_it_has_passed_then_one_probe_then_all() -> None:
    driver = Driver({"a": 8})
    tasks = [driver.submit() for _ in range(20)]
    driver.fail(driver.at("a")[0], K.OVERLOADED, after=0.1, retry_after=7.0)
    for attempt in driver.at("a"):
        driver.fail(attempt, K.OVERLOADED, after=0.0)
    driver.until(7.09)
    assert not driver.at("a")
    driver.until(7.1 + BUCKET)
    assert len(driver.at("a")) == 1
    driver.ok(driver.at("a")[0], after=0.01)
    assert len(driver.at("a")) == 8
    assert driver.at("a")[0].task is not tasks[-1]


# bulks


def test_a_bulk_is_read_as_it_is_needed() -> None:
    driver = Driver({"a": 3}, refill=False)
    feed = driver.feed(1000)
    for _ in range(300):
        while driver.watch.asked:
            driver.serve(feed)
        assert len(feed.buffer) <= CHUNK + LOW
        driver.ok(driver.at("a")[0], after=0.1)
    assert len(driver.watch.finished) == 300


def test_a_bulk_is_not_asked_again_before_it_has_answered_nor_after_it_has_ended() -> None:
    driver = Driver({"a": 3}, refill=False)
    feed = driver.feed(5)
    driver.serve(feed)
    assert feed.ended
    while driver.watch.live:
        driver.ok(driver.at("a")[0])
    assert not driver.watch.asked
    assert len(driver.watch.finished) == 5


def test_reading_more_gives_work_to_all_idle_sources_not_only_the_one_that_asked() -> None:
    driver = Driver(dict.fromkeys("abcd", 4), refill=False)
    feed = driver.feed(100)
    driver.serve(feed, most=9)
    while driver.watch.live:
        driver.ok(next(iter(driver.watch.live)), after=0.1)
    assert driver.watch.asked
    driver.serve(feed, most=32)
    assert [len(driver.at(name)) for name in "abcd"] == [4, 4, 4, 4]


def test_a_source_that_found_nothing_for_it_in_a_bulk_takes_the_next_task() -> None:
    """Only what avoids it was left; it must not be forgotten for that."""
    driver = Driver({"a": 9, "b": 1})
    driver.mark("a", down=True)
    driver.submit()
    driver.mark("a", down=False)
    avoiding = driver.submit()
    driver.fail(live(avoiding), K.TRANSIENT)
    driver.feed(1)
    assert [attempt.task is avoiding for attempt in driver.at("a")] == [False]
    assert driver.where(driver.submit()) == "a"


def test_the_timeout_of_a_bulks_task_begins_when_it_is_taken() -> None:
    driver = Driver({"a": 1})
    driver.feed(3, timeout=10.0)
    driver.ok(driver.at("a")[0], after=9.0)
    driver.ok(driver.at("a")[0], after=9.0)
    driver.ok(driver.at("a")[0], after=9.0)
    assert len(driver.watch.finished) == 3
    assert all(isinstance(outcome, Answer) for outcome in driver.watch.finished.values())


def test_a_closed_bulk_returns_what_was_read_ahead_and_never_started() -> None:
    driver = Driver({"a": 2})
    feed = driver.feed(20)
    rest = driver.close_feed(feed)
    assert len(rest) == 18
    assert all(task.state is TaskState.NEW for task in rest)
    while driver.watch.live:
        driver.ok(driver.at("a")[0])
    assert len(driver.watch.finished) == 2
    driver.watch.check_all_over()


def test_a_bulk_that_is_closed_while_it_is_being_read_is_over() -> None:
    driver = Driver({"a": 2}, refill=False)
    feed = driver.feed(20)
    assert driver.close_feed(feed) == []
    driver.serve(feed)
    assert not driver.watch.live
    assert driver.scheduler.next_wake() is None


# robustness


@given(st.permutations(range(6)), st.lists(st.sampled_from(["ok", "fail", "cancel"]), min_size=6, max_size=6))
def test_simultaneous_ends_may_be_reported_in_any_order(order: list[int], ends: list[str]) -> None:
    driver = Driver({"a": 2, "b": 2, "c": 2}, retry=Retry(attempts=1))
    tasks = [driver.submit() for _ in range(6)]
    attempts = [live(task) for task in tasks]
    for index in order:
        outcome = {"ok": Answer("yes"), "cancel": CANCELLED}.get(ends[index])
        if outcome is None:
            driver.fail(attempts[index], K.TRANSIENT, after=0.0)
        else:
            driver.report(attempts[index], outcome)  # type: ignore[arg-type]
    assert all((ends[index] == "ok") == isinstance(driver.outcome(task), Answer) for index, task in enumerate(tasks))
    assert all((ends[index] == "fail") == isinstance(driver.outcome(task), ServerError) for index, task in enumerate(tasks))
