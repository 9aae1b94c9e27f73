"""A task that is twice under way, or waits for its second source: every way in which it may go on."""

from __future__ import annotations

from itertools import product

import pytest
from scheduler_desk import ERRORS, Desk
from scheduler_warm import HANGS_ONLY, copy, live, warm

from qreward.errors import RequestTimeout
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.state import Attempt, CancelReason, Task, TaskState
from qreward.settings.policies import Hedge, Retry

K = FailureKind


def copied(retry: Retry | None = None, timeout: float | None = None) -> tuple[Desk, Task, Attempt, Attempt]:
    """A task with two attempts: at ``a``, and a copy at ``b``."""
    desk = Desk({"a": 4, "b": 4}, hedge=Hedge(after=2.0), retry=retry)
    task = desk.submit(timeout=timeout)
    desk.wait(2.1)
    first, second = live(task), copy(task)
    assert (first.source.name, second.source.name) == ("a", "b")
    return desk, task, first, second


def queued() -> tuple[Desk, Task, Task]:
    """A task that hangs at ``a`` and waits for ``b``, whose only slot another has."""
    desk = Desk({"a": 1, "b": 1}, hedge=HANGS_ONLY)
    warm(desk, "a")
    task, other = desk.submit(), desk.submit()
    if desk.where(task) == "b":
        task, other = other, task
    desk.wait(1.6)
    assert (desk.where(task), desk.where(other)) == ("a", "b")
    assert (task.state, task.suspected) == (TaskState.QUEUED, 1)
    return desk, task, other


# one of two fails


def test_when_one_of_two_attempts_fails_the_task_goes_on_with_the_other() -> None:
    kinds = (K.TRANSIENT, K.UNREACHABLE, K.TIMEOUT, K.LOCAL, K.UNSUITABLE, K.OVERLOADED, K.QUOTA)
    for kind, which in product(kinds, (0, 1)):
        desk, task, *attempts = copied()
        failed, other = attempts[which], attempts[1 - which]
        desk.fail(failed, kind)
        assert desk.outcome(task) is None, kind
        assert live(task) is other
        assert task.copy is None
        assert not desk.is_cancelled(other)
        assert task.tries == (kind not in {K.UNSUITABLE, K.OVERLOADED, K.QUOTA}), kind
        desk.wait(0.5)
        assert len(desk.path(task)) == 2
        desk.ok(other)
        assert isinstance(desk.outcome(task), Answer)
        assert [(record.endpoint, record.hedge) for record in task.trail or ()] == [("ab"[which], bool(which))], kind
        assert not desk.watch.live


def test_a_refusal_of_either_ends_the_task_and_stops_the_other() -> None:
    for kind, which in product((K.REFUSED, K.UNSENDABLE), (0, 1)):
        desk, task, *attempts = copied()
        refused, other = attempts[which], attempts[1 - which]
        desk.fail(refused, kind)
        assert desk.outcome(task) is ERRORS[kind]
        assert desk.is_cancelled(other)
        desk.cancelled(other)
        desk.watch.check_all_over()


def test_when_both_fail_the_task_is_tried_again_or_ends_with_the_last_error() -> None:
    for (first, last), most in product(((0, 1), (1, 0)), (4, 2)):
        desk, task, *attempts = copied(Retry(attempts=most, base=0.01))
        desk.fail(attempts[first], K.UNREACHABLE)
        assert desk.outcome(task) is None
        desk.fail(attempts[last], K.TRANSIENT)
        assert task.tries == 2
        assert len(task.trail or ()) == 2
        desk.wait(0.2)
        if most == 2:
            assert desk.outcome(task) is ERRORS[K.TRANSIENT]
        else:
            assert len(desk.path(task)) == 3
            desk.ok(live(task))
            assert isinstance(desk.outcome(task), Answer)
        desk.watch.check_all_over()


def test_a_task_that_goes_on_with_its_copy_may_be_copied_again_elsewhere() -> None:
    desk, task, first, second = copied()
    desk.add("c")
    desk.fail(first, K.TRANSIENT)
    desk.until(second.sent_at + 4.1)
    assert live(task) is second
    assert copy(task).source.name == "c"


# both are given up


def test_a_timeout_of_the_task_and_a_caller_who_goes_away_stop_both() -> None:
    for timeout in (5.0, None):
        desk, task, first, second = copied(timeout=timeout)
        if timeout is None:
            desk.withdraw(task)
        desk.wait(3.0)
        assert isinstance(desk.outcome(task), RequestTimeout) == (timeout is not None)
        assert desk.is_cancelled(first)
        assert desk.is_cancelled(second)
        assert first.cancel_reason is second.cancel_reason is CancelReason.ABANDONED
        desk.cancelled(first)
        desk.cancelled(second)
        desk.watch.check_all_over()


def test_the_source_of_one_of_two_may_leave_and_its_answer_still_counts() -> None:
    desk, task, first, second = copied()
    desk.remove("b")
    desk.ok(second)
    assert isinstance(desk.outcome(task), Answer)
    assert desk.is_cancelled(first)


# the copy waits in the queue


def test_a_copy_that_waits_is_sent_when_the_source_has_room() -> None:
    desk, task, other = queued()
    desk.ok(live(other), after=0.1)
    assert copy(task).source.name == "b"
    assert desk["b"].tally.hedged == 1
    assert desk["b"].tally.retried == 0


@pytest.mark.parametrize("kind", [K.TRANSIENT, K.UNSUITABLE, K.OVERLOADED])
def test_when_the_first_attempt_fails_while_the_copy_waits_the_copy_becomes_a_retry(kind: FailureKind) -> None:
    desk, task, other = queued()
    desk.fail(live(task), kind)
    assert task.attempt is None
    assert task.state is TaskState.QUEUED
    assert task.excluded == (desk["a"],)
    assert len(desk.pool.queue) == desk.pool.queue.waiting == 1
    desk.wait(0.5)
    assert desk.path(task) == ["a"], "it waits for b, at a it has failed"
    desk.ok(live(other), after=0.1)
    assert live(task).source.name == "b"
    assert task.copy is None
    assert (desk["b"].tally.hedged, desk["b"].tally.retried) == (0, kind is not K.OVERLOADED)
    assert not desk.pool.queue


@pytest.mark.parametrize("end", ["answer", "refusal", "caller goes away"])
def test_when_the_task_ends_nothing_is_left_of_the_copy_that_waits(end: str) -> None:
    desk, task, other = queued()
    first = live(task)
    match end:
        case "answer":
            desk.ok(first, after=0.1)
            assert isinstance(desk.outcome(task), Answer)
        case "refusal":
            desk.fail(first, K.REFUSED)
            assert desk.outcome(task) is ERRORS[K.REFUSED]
        case _:
            desk.withdraw(task)
            desk.cancelled(first)
    assert not desk.pool.queue
    assert len(desk.pool.queue) == desk.pool.queue.waiting == 0
    desk.ok(live(other), after=0.1)
    assert desk.path(task) == ["a"]
    desk.watch.check_all_over()


@pytest.mark.parametrize("how", ["leaves", "is marked down", "is away"])
def test_when_the_source_that_the_copy_waits_for_goes_the_first_attempt_goes_on_alone(how: str) -> None:
    desk, task, other = queued()
    match how:
        case "leaves":
            desk.leave("b")
        case "is marked down":
            desk.mark("b", down=True)
        case _:
            desk.fail(live(other), K.OVERLOADED, retry_after=30.0)
    assert task.state is TaskState.SENT
    assert not desk.is_cancelled(live(task))
    desk.ok(live(task), after=0.1)
    assert isinstance(desk.outcome(task), Answer)


@pytest.mark.parametrize("how", ["leaves", "is marked down"])
def test_when_the_source_of_the_first_attempt_goes_the_copy_still_waits(how: str) -> None:
    desk, task, other = queued()
    first = live(task)
    if how == "leaves":
        desk.leave("a")
    else:
        desk.mark("a", down=True)
    assert task.state is TaskState.QUEUED
    desk.ok(live(other), after=0.1)
    assert copy(task).source.name == "b"
    desk.ok(copy(task), after=0.1)
    assert isinstance(desk.outcome(task), Answer)
    assert desk.is_cancelled(first)


def test_the_timeout_of_a_task_whose_copy_waits_takes_it_out_of_the_queue() -> None:
    desk = Desk({"a": 1, "b": 1}, hedge=HANGS_ONLY)
    warm(desk, "a")
    task, other = desk.submit(timeout=4.0), desk.submit(timeout=4.0)
    desk.wait(3.0)
    assert TaskState.QUEUED in (task.state, other.state)
    desk.wait(1.1)
    assert isinstance(desk.outcome(task), RequestTimeout)
    assert isinstance(desk.outcome(other), RequestTimeout)
    assert not desk.pool.queue
    for attempt in list(desk.watch.live):
        desk.cancelled(attempt)
    desk.watch.check_all_over()
