"""A task that is twice under way, or waits for its second source: every way in which it may go on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from scheduler_driver import ERRORS, Driver
from scheduler_warm import HANGS_ONLY, copy, live, warm

from qreward.errors import RequestTimeout
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.task import Attempt, CancelReason, Task, TaskState
from qreward.settings.policies import Hedge, Retry

K = FailureKind


def copied(retry: Retry | None = None, timeout: float | None = None) -> tuple[Driver, Task, Attempt, Attempt]:
    """A task with two attempts: at ``a``, and a copy at ``b``."""
    driver = Driver({"a": 4, "b": 4}, hedge=Hedge(after=2.0), retry=retry)
    task = driver.submit(timeout=timeout)
    driver.wait(2.1)
    first, second = live(task), copy(task)
    assert (first.source.name, second.source.name) == ("a", "b")
    return driver, task, first, second


def queued() -> tuple[Driver, Task, Task]:
    """A task that hangs at ``a`` and waits for ``b``, whose only slot another has."""
    driver = Driver({"a": 1, "b": 1}, hedge=HANGS_ONLY)
    warm(driver, "a")
    task, other = driver.submit(), driver.submit()
    if driver.where(task) == "b":
        task, other = other, task
    driver.wait(1.6)
    assert (driver.where(task), driver.where(other)) == ("a", "b")
    assert (task.state, task.suspected) == (TaskState.QUEUED, 1)
    return driver, task, other


def test_when_one_of_two_attempts_fails_the_task_goes_on_with_the_other() -> None:
    kinds = (K.TRANSIENT, K.UNREACHABLE, K.TIMEOUT, K.LOCAL, K.UNSUITABLE, K.OVERLOADED, K.QUOTA)
    for kind, which in product(kinds, (0, 1)):
        driver, task, *attempts = copied()
        failed, other = attempts[which], attempts[1 - which]
        driver.fail(failed, kind)
        assert driver.outcome(task) is None, kind
        assert live(task) is other
        assert task.copy is None
        assert not driver.is_cancelled(other)
        assert task.tries == (kind not in {K.UNREACHABLE, K.UNSUITABLE, K.OVERLOADED, K.QUOTA}), kind
        driver.wait(0.5)
        assert len(driver.path(task)) == 2
        driver.ok(other)
        assert isinstance(driver.outcome(task), Answer)
        assert [(record.endpoint, record.hedge) for record in task.trail or ()] == [("ab"[which], bool(which))], kind
        assert not driver.watch.live


def test_a_refusal_of_either_ends_the_task_and_stops_the_other() -> None:
    for kind, which in product((K.REFUSED, K.UNSENDABLE), (0, 1)):
        driver, task, *attempts = copied()
        refused, other = attempts[which], attempts[1 - which]
        driver.fail(refused, kind)
        assert driver.outcome(task) is ERRORS[kind]
        assert driver.is_cancelled(other)
        driver.cancelled(other)
        driver.watch.check_all_over()


def test_when_both_fail_the_task_is_tried_again_or_ends_with_the_last_error() -> None:
    for (first, last), most in product(((0, 1), (1, 0)), (4, 2)):
        driver, task, *attempts = copied(Retry(attempts=most, base=0.01))
        driver.fail(attempts[first], K.LOCAL)
        assert driver.outcome(task) is None
        driver.fail(attempts[last], K.TRANSIENT)
        assert task.tries == 2
        assert len(task.trail or ()) == 2
        driver.wait(0.2)
        if most == 2:
            assert driver.outcome(task) is ERRORS[K.TRANSIENT]
        else:
            assert [attempt.number for _, attempt in driver.watch.sends] == [1, 2, 3]
            assert (task.sends, task.copies) == (3, 1)
            driver.ok(live(task))
            assert isinstance(driver.outcome(task), Answer)
        driver.watch.check_all_over()


def test_a_task_that_goes_on_with_its_copy_may_be_copied_again_elsewhere() -> None:
    driver, task, first, second = copied()
    driver.add("c")
    driver.fail(first, K.TRANSIENT)
    driver.until(second.sent_at + 4.1)
    assert live(task) is second
    assert copy(task).source.name == "c"


def test_a_timeout_of_the_task_and_a_caller_that_goes_away_stop_both() -> None:
    for timeout in (5.0, None):
        driver, task, first, second = copied(timeout=timeout)
        if timeout is None:
            driver.withdraw(task)
        driver.wait(3.0)
        assert isinstance(driver.outcome(task), RequestTimeout) == (timeout is not None)
        assert driver.is_cancelled(first)
        assert driver.is_cancelled(second)
        assert first.cancel_reason is second.cancel_reason is CancelReason.ABANDONED
        driver.cancelled(first)
        driver.cancelled(second)
        driver.watch.check_all_over()


def ends(driver: Driver, task: Task) -> None:
    first = live(task)
    driver.withdraw(task)
    driver.cancelled(first)


EVENTS: dict[str, tuple[Callable[[Driver, Task, Task], object], TaskState, tuple[int, int]]] = {
    "nothing": (lambda _driver, _task, _other: None, TaskState.QUEUED, (1, 0)),
    "it is not for the first": (lambda driver, task, _: driver.fail(live(task), K.UNSUITABLE), TaskState.QUEUED, (0, 1)),
    "the first leaves": (lambda driver, _task, _other: driver.leave("a"), TaskState.QUEUED, (1, 0)),
    "the first is marked down": (lambda driver, _task, _other: driver.mark("a", down=True), TaskState.QUEUED, (1, 0)),
    "the other leaves": (lambda driver, _task, _other: driver.leave("b"), TaskState.SENT, (0, 0)),
    "the other is marked down": (lambda driver, _task, _other: driver.mark("b", down=True), TaskState.SENT, (0, 0)),
    "an answer": (lambda driver, task, _: driver.ok(live(task), after=0.1), TaskState.DONE, (0, 0)),
    "a refusal": (lambda driver, task, _: driver.fail(live(task), K.REFUSED), TaskState.DONE, (0, 0)),
    "the caller goes away": (lambda driver, task, _: ends(driver, task), TaskState.DONE, (0, 0)),
}
"""What happens while the copy waits; how the task stands then; hedges and retries that b counts when it has a free slot."""


def test_whatever_happens_while_a_copy_waits_the_task_goes_on_with_what_is_left() -> None:
    for name, (event, state, counted) in EVENTS.items():
        driver, task, other = queued()
        first = live(task)
        event(driver, task, other)
        assert task.state is state, name
        assert len(driver.pool.queue) == driver.pool.queue.waiting == (state is TaskState.QUEUED), name
        driver.wait(0.5)
        assert driver.path(task) == ["a"], f"{name}: it waits for b"
        assert state is TaskState.DONE or not driver.is_cancelled(first)
        if other.attempt is not None:
            driver.ok(live(other), after=0.1)
        sent_to_b = state is TaskState.QUEUED
        assert driver.path(task) == (["a", "b"] if sent_to_b else ["a"]), name
        assert (driver["b"].tally.hedged, driver["b"].tally.retried) == counted, name
        assert (task.copy is not None) == (counted == (1, 0)), name
        if state is not TaskState.DONE:
            driver.ok(task.copy or live(task), after=0.1)
            assert isinstance(driver.outcome(task), Answer), name
            assert first.ended or driver.is_cancelled(first), name
        else:
            driver.watch.check_all_over()
            assert driver.outcome(task) is {"a refusal": ERRORS[K.REFUSED]}.get(name) or name == "an answer"
