"""What follows from a failure: for the task, for the source, for the budget. Played through the scheduler."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf

import pytest
from scheduler_desk import ERRORS, Desk
from scheduler_warm import live

from qreward.errors import BadRequest, ClientClosed, RequestTimeout, ServerError
from qreward.scheduler.outcome import Answer, FailureKind
from qreward.settings.policies import Retry

K = FailureKind


def open_breaker(desk: Desk, name: str) -> None:
    """Let five distinct tasks fail at a source in a row."""
    others = [other for other in desk.sources if other != name]
    for other in others:
        desk.mark(other, down=True)
    tasks = [desk.submit() for _ in range(5)]
    for attempt in desk.at(name):
        desk.fail(attempt, K.TRANSIENT, after=0.0)
    for other in others:
        desk.mark(other, down=False)
    desk.withdraw(*tasks)
    for attempt in list(desk.watch.live):
        desk.cancelled(attempt)
    assert not desk[name].health.in_service


def test_each_kind_of_failure_is_tried_at_as_many_sources_as_may_help_and_ends_with_its_error() -> None:
    """Of a fleet of three, and of one."""
    expected = {K.REFUSED: (1, 1), K.UNSENDABLE: (1, 1), K.UNSUITABLE: (2, 1), K.QUOTA: (3, 1)}
    found = {}
    for kind in expected:
        sources = []
        for names in ("abc", "a"):
            desk = Desk(dict.fromkeys(names, 4))
            task = desk.submit()
            while task.attempt is not None:
                desk.fail(task.attempt, kind)
            assert desk.outcome(task) is ERRORS[kind]
            assert task.tries == 0 or kind in {K.REFUSED, K.UNSENDABLE}
            assert len(set(desk.path(task))) == len(desk.path(task))
            sources.append(len(desk.path(task)))
        found[kind] = tuple(sources)
    assert found == expected


def test_failures_that_are_not_the_fault_of_a_source_leave_it_in_service() -> None:
    for kind, how, serves in (
        (K.REFUSED, {}, True),
        (K.LOCAL, {}, True),
        (K.UNSUITABLE, {"misconfigured": False}, True),
        (K.UNSUITABLE, {"misconfigured": True}, False),
        (K.TRANSIENT, {}, False),
        (K.TIMEOUT, {}, False),
        (K.UNREACHABLE, {}, False),
    ):
        desk = Desk({"a": 9, "b": 9})
        desk.mark("b", down=True)
        tasks = [desk.submit() for _ in range(9)]
        desk.mark("b", down=False)
        for task in tasks:
            desk.fail(live(task), kind, after=0.0, **how)
        assert desk["a"].health.in_service == serves, (kind, how)


def test_overload_costs_the_task_no_attempt_the_source_no_health_and_the_budget_nothing() -> None:
    desk = Desk({"a": 4}, retry=Retry(attempts=1, budget=0.0, budget_floor=0.01))
    spend = desk.scheduler._failure_policy.budget
    while spend.withdraw(desk.now):
        pass
    task = desk.submit()
    for _ in range(30):
        while task.attempt is None:
            desk.wait(0.1)
        desk.fail(task.attempt, K.OVERLOADED)
    assert task.tries == 0
    assert desk.now < 30 * 3.2 * 1.5 + 30, "the gate alone holds it back, not a budget"
    assert desk["a"].health.in_service
    while task.attempt is None:
        desk.wait(0.1)
    desk.ok(task.attempt)
    assert isinstance(desk.outcome(task), Answer)


def test_a_rejected_task_goes_elsewhere_at_once_if_there_is_room_elsewhere() -> None:
    desk = Desk({"a": 4, "b": 4})
    task = desk.submit()
    first = desk.where(task)
    desk.fail(live(task), K.OVERLOADED, retry_after=60.0)
    assert desk.where(task) not in (None, first)


def test_an_account_that_is_used_up_is_left_alone_for_five_minutes() -> None:
    desk = Desk({"a": 1, "b": 1})
    task = desk.submit()
    empty = str(desk.where(task))
    desk.fail(live(task), K.QUOTA)
    assert not desk[empty].health.in_service
    desk.wait(299.0)
    desk.submit()
    assert not desk.at(empty)
    desk.wait(2.0)
    assert len(desk.at(empty)) == 1


def test_an_endpoint_that_says_whether_to_retry_is_believed() -> None:
    for kind, should_retry in ((K.TRANSIENT, False), (K.REFUSED, True)):
        desk = Desk({"a": 4, "b": 4})
        task = desk.submit()
        desk.fail(live(task), kind, should_retry=should_retry)
        assert desk.outcome(task) is (None if should_retry else ERRORS[kind])
        assert len(desk.path(task)) == 1 + should_retry


def test_a_failed_task_goes_to_another_source_at_once_or_waits_for_it_rather_than_go_back() -> None:
    desk = Desk({"a": 1, "b": 1})
    task = desk.submit()
    first, now = desk.where(task), desk.now + 0.01
    desk.fail(live(task), K.TRANSIENT, after=0.01)
    assert desk.now == now
    second = desk.where(task)
    assert second not in (None, first)
    other = desk.submit()
    assert desk.where(other) == first
    desk.fail(live(other), K.TRANSIENT)
    assert other.attempt is None
    desk.submit()
    assert desk.at(str(first)), "its place is taken by one that does not avoid the source"
    desk.ok(live(task))
    assert desk.where(other) == second


def test_where_there_is_no_other_source_a_retry_waits_with_full_jitter() -> None:
    waits = []
    for seed in range(40):
        desk = Desk({"a": 4}, retry=Retry(base=2.0), seed=seed)
        task = desk.submit()
        desk.fail(live(task), K.TRANSIENT, after=0.0)
        assert not desk["a"].inflight, "a waiting retry holds no slot"
        while task.attempt is None:
            desk.wait(1 / 64)
        waits.append(desk.now)
    assert min(waits) < 0.4
    assert max(waits) > 1.6
    assert max(waits) <= 2.0 + 2 / 64


def test_a_task_that_always_fails_is_sent_as_often_as_the_policy_says() -> None:
    for sources, attempts, kind in product(("a", "ab", "abcdef"), (1, 2, 4), (K.TRANSIENT, K.UNREACHABLE, K.TIMEOUT, K.LOCAL)):
        desk = Desk(dict.fromkeys(sources, 4), retry=Retry(attempts=attempts))
        task = desk.submit()
        while desk.outcome(task) is None:
            desk.wait(0.1)
            if task.attempt is not None:
                desk.fail(task.attempt, kind)
        case = (sources, attempts, kind)
        assert desk.outcome(task) is ERRORS[kind], case
        assert len(desk.path(task)) == attempts, case
        assert [record.outcome for record in task.trail or ()] == [kind.name.lower()] * attempts, case
        if len(sources) > 1:
            assert all(one != other for one, other in pairwise(desk.path(task))), f"twice in a row at the same source: {case}"


def test_a_task_that_failed_at_two_sources_is_not_held_against_the_third() -> None:
    """Poison for everyone: the slowest source always gets it last, and answers nothing else in between."""
    desk = Desk(dict.fromkeys("abc", 9), retry=Retry(attempts=3))
    for _ in range(4):
        tasks = [desk.submit() for _ in range(3)]
        for task in sorted(tasks, key=lambda task: desk.where(task) == "c"):
            desk.ok(live(task), after=10.0 if desk.where(task) == "c" else 0.0)
    for _ in range(20):
        poison = desk.submit()
        for _ in range(3):
            while poison.attempt is None:
                desk.wait(0.1)
            desk.fail(live(poison), K.TRANSIENT)
        assert desk.path(poison)[2] == "c"
        assert isinstance(desk.outcome(poison), ServerError)
        for task in [desk.submit() for _ in range(8)]:
            assert desk.where(task) != "c"
            desk.ok(live(task), after=0.0)
    assert desk["c"].health.in_service


def test_it_comes_back_by_one_real_task_then_two_then_four() -> None:
    desk = Desk({"a": 8})
    open_breaker(desk, "a")
    tasks = [desk.submit() for _ in range(30)]
    desk.until(desk["a"].health.open_until - 0.01)
    assert not desk.at("a")
    desk.wait(1.0)
    sizes = []
    for _ in range(4):
        sizes.append(len(desk.at("a")))
        for attempt in desk.at("a"):
            desk.ok(attempt, after=0.001)
    assert sizes == [1, 2, 4, 8]
    assert sum(isinstance(desk.outcome(task), Answer) for task in tasks) == 15
    assert desk["a"].health.half_open_limit == inf


def test_a_failed_probe_is_not_charged_to_the_task() -> None:
    desk = Desk({"a": 8}, retry=Retry(attempts=2))
    open_breaker(desk, "a")
    task = desk.submit()
    for _ in range(20):
        while task.attempt is None:
            desk.wait(0.1)
        desk.fail(task.attempt, K.UNREACHABLE)
    assert task.tries == 0
    while task.attempt is None:
        desk.wait(0.1)
    desk.ok(task.attempt)
    assert isinstance(desk.outcome(task), Answer)


def test_a_retry_without_budget_waits_for_it_and_never_fails_for_lack_of_it() -> None:
    desk = Desk({"a": 400, "b": 400}, retry=Retry(budget=0.0, budget_floor=1.0))
    tasks = [desk.submit() for _ in range(400)]
    desk.scheduler.resize([])
    while desk.scheduler._failure_policy.budget.withdraw(desk.now):
        pass
    task = tasks[0]
    desk.fail(live(task), K.TRANSIENT, after=0.0)
    assert task.attempt is None
    desk.wait(0.9)
    assert task.attempt is None
    desk.wait(0.2)
    desk.ok(live(task))
    assert isinstance(desk.outcome(task), Answer)


def test_a_failure_after_the_timeout_draws_on_no_budget_and_changes_no_trail_but_counts_against_its_source() -> None:
    desk = Desk({"a": 9}, retry=Retry(budget=0.0, budget_floor=0.01))
    budget = desk.scheduler._failure_policy.budget
    budget.capacity = 2
    while budget.withdraw(0.0):
        pass
    desk.wait(120.0)
    tasks = [desk.submit(timeout=1.0) for _ in range(5)]
    attempts = [live(task) for task in tasks]
    desk.wait(2.0)
    for task, attempt in zip(tasks, attempts, strict=True):
        assert isinstance(desk.outcome(task), RequestTimeout)
        desk.fail(attempt, K.TRANSIENT, after=0.0)
        assert not task.trail
    assert budget.withdraw(desk.now)
    assert not budget.withdraw(desk.now), "there was one, and it was still there"
    assert not desk["a"].health.in_service


def test_an_overdue_attempt_is_cancelled_and_the_task_goes_elsewhere_with_twice_the_time() -> None:
    desk = Desk({"a": 4, "b": 4})
    task = desk.submit()
    first = live(task)
    desk.wait(119.9)
    assert not desk.is_cancelled(first)
    desk.wait(0.2)
    assert desk.is_cancelled(first)
    desk.cancelled(first, after=0.5)
    second = live(task)
    assert second.source is not first.source
    desk.wait(239.9)
    assert not desk.is_cancelled(second)
    desk.wait(0.2)
    assert desk.is_cancelled(second)
    assert task.tries == 1, "it is charged when it has ended"
    desk.ok(second, after=0.0)
    assert isinstance(desk.outcome(task), Answer), "an answer that crosses its cancellation is taken"


def test_timeouts_of_callers_count_against_a_source_only_if_they_are_far_longer_than_its_answers() -> None:
    for usual, hangs in ((0.1, True), (1.0, False)):
        desk = Desk({"a": 64})
        for _ in range(20):
            desk.ok(live(desk.submit()), after=usual)
        for _ in range(5 if hangs else 20):
            attempt = live(desk.submit(timeout=2.0))
            desk.wait(2.1)
            assert desk.is_cancelled(attempt)
            desk.cancelled(attempt)
        assert desk["a"].health.in_service is not hangs
        assert hangs or desk["a"].tally.cancelled == 20


def test_an_attempt_that_was_stopped_from_outside_ends_its_task() -> None:
    desk = Desk({"a": 4})
    task = desk.submit()
    desk.cancelled(live(task))
    assert isinstance(desk.outcome(task), ClientClosed)


def test_the_trail_names_each_failure_and_a_long_outage_does_not_fill_it() -> None:
    desk = Desk({"a": 4})
    task = desk.submit()
    for _ in range(150):
        while task.attempt is None:
            desk.wait(1.0)
        desk.fail(task.attempt, K.OVERLOADED, after=0.25)
    while task.attempt is None:
        desk.wait(1.0)
    desk.fail(live(task), K.REFUSED)
    assert task.trail is not None
    assert len(task.trail) == 101
    assert (task.trail[0].endpoint, task.trail[0].outcome) == ("a", "overloaded")
    assert task.trail[0].latency == pytest.approx(0.25)
    assert isinstance(desk.outcome(task), BadRequest)


def test_a_source_that_is_lost_grants_each_request_that_was_under_way_one_retry_whatever_is_replied_to_the_rest() -> None:
    too_many = {}
    for kind in (K.OVERLOADED, K.QUOTA, K.TRANSIENT, K.UNREACHABLE):
        desk = Desk({"a": 64, "b": 64, "c": 64}, retry=Retry(budget=0.0, budget_floor=0.01), thorough=False)
        budget = desk.scheduler._failure_policy.budget
        while budget.withdraw(0.0):
            pass
        for name in "bc":
            desk.mark(name, down=True)
        held = [live(desk.submit()) for _ in range(60)]
        for name in "bc":
            desk.mark(name, down=False)
        for number, attempt in enumerate(held):
            desk.fail(attempt, K.TRANSIENT if number < 5 else kind, after=0.0)
        granted = sum(budget.withdraw(desk.now) for _ in range(3000))
        if granted > 60:
            too_many[kind.name] = granted
    assert not too_many
