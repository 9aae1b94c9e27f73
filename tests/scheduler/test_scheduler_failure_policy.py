"""What a failure costs the task and the source; how long a retry waits, and how many there may be."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import pytest
from scheduler_driver import ERRORS, Driver, failure
from scheduler_warm import awaited, live

from qreward.errors import BadRequest, ClientClosed, InvalidResponse, RequestTimeout
from qreward.scheduler.failure_policy import MOST_TRAIL, RULES, backoff, rule_for
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import Retry

K = FailureKind


def test_each_kind_of_failure_is_tried_at_as_many_sources_as_may_help_and_ends_with_its_error() -> None:
    """Of a fleet of three, and of one. A wrong key is not the fault of the task, so all are tried."""
    expected = {K.REFUSED: (1, 1), K.UNSENDABLE: (1, 1), K.UNSUITABLE: (3, 1), K.QUOTA: (3, 1)}
    found = {}
    for kind in expected:
        sources = []
        for names in ("abc", "a"):
            driver = Driver(dict.fromkeys(names, 4))
            task = driver.submit()
            while task.attempt is not None:
                driver.fail(task.attempt, kind)
            assert driver.outcome(task) is ERRORS[kind]
            assert task.tries == 0 or kind in {K.REFUSED, K.UNSENDABLE}
            assert names == "abc" or driver["a"].health.in_service, "the only source is never given up for its account"
            assert len(set(driver.path(task))) == len(driver.path(task))
            sources.append(len(driver.path(task)))
        found[kind] = tuple(sources)
    assert found == expected


def test_failures_that_are_not_the_fault_of_a_source_leave_it_in_service() -> None:
    found = {}
    for kind, how, alone, serves in (
        (K.REFUSED, {}, False, True),
        (K.LOCAL, {}, False, True),
        (K.UNSUITABLE, {"misconfigured": False}, False, True),
        (K.UNSUITABLE, {"misconfigured": True}, False, False),
        (K.UNSUITABLE, {"misconfigured": True}, True, True),
        (K.TRANSIENT, {}, False, False),
        (K.TRANSIENT, {"hurts_health": False}, False, True),
        (K.TIMEOUT, {}, False, False),
        (K.UNREACHABLE, {}, False, False),
        (K.UNREACHABLE, {}, True, False),
    ):
        driver = Driver({"a": 9, "b": 9})
        driver.mark("b", down=True)
        tasks = [driver.submit() for _ in range(9)]
        driver.mark("b", down=alone)
        for task in tasks:
            driver.fail(live(task), kind, after=0.0, **how)
        if driver["a"].health.in_service != serves:
            found[kind, alone] = driver["a"].health.in_service
    assert not found


def test_sources_that_serve_no_task_of_a_model_do_not_keep_it_from_another_source() -> None:
    for by_content, ends_at in ((True, 2), (False, 5)):
        driver = Driver(dict.fromkeys("abcde", 1))
        task = driver.submit()
        while task.attempt is not None:
            driver.end(task.attempt, Failure(K.UNSUITABLE, InvalidResponse("not like this"), hurts_health=by_content), 0.01)
        assert len(driver.path(task)) == ends_at


def test_a_task_that_runs_out_of_time_at_one_source_after_the_other_is_held_against_the_first_alone() -> None:
    """Another failure at the second is held against that."""
    for kind, serves in ((K.TIMEOUT, True), (K.TRANSIENT, False)):
        driver = Driver({"a": 9, "b": 9})
        driver.mark("b", down=True)
        tasks = [driver.submit() for _ in range(5)]
        driver.mark("b", down=False)
        for task in tasks:
            driver.fail(live(task), K.TIMEOUT, after=0.0)
        assert [driver.where(task) for task in tasks] == ["b"] * 5
        for task in tasks:
            driver.fail(live(task), kind, after=0.0)
        assert [driver[name].health.in_service for name in "ab"] == [False, serves], kind


def test_five_requests_that_run_out_of_time_show_that_a_source_is_dead_unless_it_turned_one_away_in_between() -> None:
    for sign in (None, K.OVERLOADED, K.REFUSED):
        driver = Driver({"a": 8})
        for number in range(5):
            attempt = live(driver.submit(timeout=1.0))
            driver.wait(1.1)
            driver.cancelled(attempt)
            if number == 3 and sign is not None:
                turned_away = driver.submit()
                driver.fail(live(turned_away), sign)
                driver.withdraw(turned_away)
                driver.wait(5.0)
        assert driver["a"].is_alive() is (sign is not None), sign


def test_overload_costs_the_task_no_attempt_and_the_source_no_health() -> None:
    driver = Driver({"a": 4}, retry=Retry(attempts=1))
    task = driver.submit()
    for _ in range(30):
        driver.fail(awaited(driver, task), K.OVERLOADED)
    assert task.tries == 0
    assert driver.now < 30 * 3.2 * 1.5 + 30, "the cooldown alone holds it back"
    assert driver["a"].health.in_service
    driver.ok(awaited(driver, task))
    assert isinstance(driver.outcome(task), Answer)


def test_an_account_that_is_used_up_is_left_alone_for_five_minutes() -> None:
    driver = Driver({"a": 1, "b": 1})
    task = driver.submit()
    empty = str(driver.where(task))
    driver.fail(live(task), K.QUOTA)
    assert not driver[empty].health.in_service
    driver.wait(299.0)
    driver.submit()
    assert not driver.at(empty)
    driver.wait(2.0)
    assert len(driver.at(empty)) == 1


def test_a_failed_task_goes_where_it_is_expected_to_be_answered_first_at_once_or_when_that_source_has_a_slot() -> None:
    driver = Driver({"slow": 1, "quick": 1})
    for name, seconds in (("slow", 20.0), ("quick", 1.0)):
        warm_one(driver, name, seconds)
    driver.mark("quick", down=True)
    other = driver.submit()
    assert driver.where(other) == "slow"
    driver.mark("quick", down=False)
    task = driver.submit()
    assert driver.where(task) == "quick"
    driver.fail(live(other), K.TRANSIENT, after=0.01)
    assert other.attempt is None, "it waits for the quick one"
    driver.wait(0.6)
    assert driver.where(other) is None
    driver.ok(live(task), after=0.2)
    assert driver.where(other) == "quick"
    driver.fail(live(other), K.TRANSIENT, after=0.01)
    assert awaited(driver, other).source.name == "quick", "a second try there is still sooner than the slow one"
    assert (driver["slow"].tally.retried, driver["quick"].tally.retried) == (0, 2)


def warm_one(driver: Driver, name: str, seconds: float) -> None:
    """Let a source give twenty answers that take so long, while the others rest."""
    others = [each for each in driver.sources if each != name]
    for each in others:
        driver.mark(each, down=True)
    for _ in range(20):
        driver.ok(live(driver.submit()), after=seconds)
    for each in others:
        driver.mark(each, down=False)


def test_a_task_that_an_endpoint_cannot_serve_does_not_return_to_one_where_it_failed_before() -> None:
    driver = Driver(dict.fromkeys("abc", 4))
    task = driver.submit()
    driver.fail(live(task), K.TRANSIENT)
    (left,) = set("abc") - set(driver.path(task))
    while len(driver.at(left)) < 3:
        driver.submit()
    driver.fail(live(task), K.UNSUITABLE)
    assert driver.path(task)[2:] == [left], "although it has the most to do"


def test_a_task_that_always_fails_is_sent_as_often_as_the_policy_says() -> None:
    for sources, attempts, kind in product(("a", "ab", "abcdef"), (1, 2, 4), (K.TRANSIENT, K.UNREACHABLE, K.TIMEOUT, K.LOCAL)):
        driver = Driver(dict.fromkeys(sources, 4), retry=Retry(attempts=attempts))
        task = driver.submit()
        while driver.outcome(task) is None:
            driver.wait(0.1)
            if task.attempt is not None:
                driver.fail(task.attempt, kind)
        case = (sources, attempts, kind)
        assert driver.outcome(task) is ERRORS[kind], case
        sends = len(driver.path(task))
        if kind is K.UNREACHABLE and attempts > 1:  # the first refused connection of each source but the last is not charged
            assert attempts <= sends <= attempts + len(sources) - 1, case
        else:
            assert sends == attempts, case
        assert [record.outcome for record in task.trail or ()] == [kind.name.lower()] * sends, case
        if len(sources) > 1 and kind is not K.UNREACHABLE:  # the other one is out of service then
            assert all(one != other for one, other in pairwise(driver.path(task))), f"twice in a row at the same source: {case}"


def test_endpoints_with_a_wrong_key_are_left_alone_and_no_item_fails_for_them() -> None:
    driver = Driver(dict.fromkeys("abcdefgh", 4))
    tasks = []
    for _ in range(100):
        tasks += [driver.submit() for _ in range(10)]
        while driver.watch.live:
            attempt = next(iter(driver.watch.live))
            if attempt.source.name in "gh":
                driver.fail(attempt, K.UNSUITABLE, misconfigured=True)
            else:
                driver.ok(attempt, after=0.01)
    assert all(isinstance(driver.outcome(task), Answer) for task in tasks)
    assert all(driver[name].tally.sent < 10 for name in "gh"), "it is tried again every few seconds"


def test_a_failed_probe_is_not_charged_to_the_task() -> None:
    driver = Driver({"a": 8}, retry=Retry(attempts=2))
    driver["a"].health.eject(driver.now, 2.0)
    task = driver.submit()
    for _ in range(20):
        driver.fail(awaited(driver, task), K.UNREACHABLE)
    assert task.tries == 0
    driver.ok(awaited(driver, task))
    assert isinstance(driver.outcome(task), Answer)
    driver["a"].health.eject(driver.now, 2.0)
    task = driver.submit()
    while driver.outcome(task) is None:
        driver.fail(awaited(driver, task), K.UNREACHABLE)
    assert MOST_TRAIL <= len(driver.path(task)) <= MOST_TRAIL + 3, "in the end they are"


def test_a_failure_of_the_clients_own_machine_is_charged_wherever_the_task_is() -> None:
    driver = Driver({"a": 8}, retry=Retry(attempts=2))
    task = driver.submit()
    driver["a"].health.eject(driver.now, 2.0)
    driver.fail(live(task), K.LOCAL)
    assert task.tries == 1


def test_a_retry_goes_elsewhere_also_after_a_failure_that_is_not_the_fault_of_its_source() -> None:
    for kind, how in ((K.LOCAL, {}), (K.TRANSIENT, {"hurts_health": False})):
        driver = Driver({"a": 1, "b": 1})
        task, other = driver.submit(), driver.submit()
        failed, busy = live(task).source, live(other).source
        driver.wait(0.02)
        driver.fail(live(task), kind, **how)
        driver.wait(0.4)
        assert task.attempt is None, f"{failed.name} is free, but not expected to answer first"
        driver.ok(live(other), after=0.0)
        assert awaited(driver, task).source is busy


def test_a_failure_after_the_timeout_changes_no_trail_but_counts_against_its_source() -> None:
    driver = Driver({"a": 9})
    driver.wait(120.0)
    tasks = [driver.submit(timeout=1.0) for _ in range(5)]
    attempts = [live(task) for task in tasks]
    driver.wait(2.0)
    for task, attempt in zip(tasks, attempts, strict=True):
        assert isinstance(driver.outcome(task), RequestTimeout)
        trail = list(task.trail or ())
        assert [(each.endpoint, each.outcome, each.latency) for each in trail] == [("a", "timeout", 1.0)]
        driver.fail(attempt, K.TRANSIENT, after=0.0)
        assert task.trail == trail
    assert not driver["a"].health.in_service


def test_an_overdue_attempt_is_cancelled_and_the_task_goes_elsewhere_with_twice_the_time() -> None:
    driver = Driver({"a": 4, "b": 4})
    task = driver.submit()
    first = live(task)
    driver.wait(119.9)
    assert not driver.is_cancelled(first)
    driver.wait(0.2)
    assert driver.is_cancelled(first)
    driver.cancelled(first, after=0.5)
    assert f"{driver.now - first.sent_at:.1f} s" in str(task.last_error)
    second = live(task)
    assert second.source is not first.source
    driver.wait(239.9)
    assert not driver.is_cancelled(second)
    driver.wait(0.2)
    assert driver.is_cancelled(second)
    assert task.tries == 1, "it is charged when it has ended"
    driver.ok(second, after=0.0)
    assert isinstance(driver.outcome(task), Answer), "an answer that crosses its cancellation is taken"


def test_what_callers_give_up_is_no_failure_but_shows_that_a_source_is_slow() -> None:
    driver = Driver({"a": 64, "b": 64})
    for _ in range(40):
        driver.ok(live(driver.submit()), after=0.1)
    driver.mark("b", down=True)
    for _ in range(8):
        attempt = live(driver.submit(timeout=2.0))
        driver.wait(2.1)
        assert driver.is_cancelled(attempt)
        driver.cancelled(attempt)
    driver.mark("b", down=False)
    assert driver["a"].health.in_service
    assert driver["a"].tally.cancelled == 8
    assert [driver.where(driver.submit()) for _ in range(5)] == ["b"] * 5


def test_a_batch_that_is_cancelled_takes_no_source_out_of_service() -> None:
    """Answers of 10 ms, then a batch of answers that take longer, given up after 0.1 s."""
    driver = Driver({"a": 64, "b": 64})
    for _ in range(60):
        driver.ok(live(driver.submit()), after=0.01)
    tasks = [driver.submit() for _ in range(64)]
    attempts = [live(task) for task in tasks]
    driver.wait(0.1)
    driver.withdraw(*tasks)
    for attempt in attempts:
        driver.cancelled(attempt)
    assert all(driver[name].health.in_service for name in "ab")
    assert driver.where(driver.submit()) is not None


def test_an_attempt_that_was_stopped_from_outside_ends_its_task() -> None:
    driver = Driver({"a": 4})
    task = driver.submit()
    driver.cancelled(live(task))
    assert isinstance(driver.outcome(task), ClientClosed)


def test_the_trail_names_each_failure_and_a_long_outage_does_not_fill_it() -> None:
    driver = Driver({"a": 4})
    task = driver.submit()
    for _ in range(150):
        driver.fail(awaited(driver, task, 1.0), K.OVERLOADED, after=0.25)
    driver.fail(awaited(driver, task, 1.0), K.REFUSED)
    assert task.trail is not None
    assert len(task.trail) == 101
    assert (task.trail[0].endpoint, task.trail[0].outcome) == ("a", "overloaded")
    assert task.trail[0].latency == pytest.approx(0.25)
    assert isinstance(driver.outcome(task), BadRequest)


def test_only_a_hint_that_was_shortened_is_shown_as_such() -> None:
    shown = {}
    for hint in (2.0, 60.0, 61.0):
        driver = Driver({"a": 4}, retry=Retry(max_retry_after=60.0))
        driver.fail(live(driver.submit()), K.OVERLOADED, retry_after=hint)
        shown[hint] = driver["a"].cooldown.uncapped_hint
    assert shown == {2.0: None, 60.0: None, 61.0: 61.0}


def test_a_reject_that_asks_for_no_wait_counts_like_one_without_a_hint() -> None:
    found = []
    for hint in (None, 0.0, 1.0):
        driver = Driver({"a": 4}, retry=Retry())
        driver.fail(live(driver.submit()), K.OVERLOADED, retry_after=hint)
        found.append((driver["a"].cooldown.opens_at, driver["a"].ready_at(driver.now)))
    assert found[0] == found[1] != found[2]


def test_an_endpoint_that_asks_for_a_retry_gets_one_unless_the_request_cannot_be_sent() -> None:
    assert set(RULES) == set(FailureKind)
    for kind in FailureKind:
        assert rule_for(failure(kind, should_retry=True)) == RULES[K.TRANSIENT if kind is K.REFUSED else kind], kind
    assert not rule_for(failure(K.UNSENDABLE, should_retry=True)).retryable, "it would fail in the same way"


def test_an_endpoint_that_forbids_a_retry_is_not_asked_again_but_others_are() -> None:
    """One other endpoint, or all if the task is not the cause."""
    none, one, every = {K.REFUSED, K.UNSENDABLE}, {K.TRANSIENT, K.UNREACHABLE, K.TIMEOUT, K.LOCAL}, {K.OVERLOADED, K.QUOTA, K.UNSUITABLE}
    asked = {}
    for kind in FailureKind:
        driver = Driver(dict.fromkeys("abc", 4))
        task = driver.submit()
        while task.attempt is not None:
            driver.fail(task.attempt, kind, should_retry=False)
        assert driver.outcome(task) is ERRORS[kind]
        assert len(set(driver.path(task))) == len(driver.path(task))
        asked[kind] = len(driver.path(task))
    assert asked == dict.fromkeys(none, 1) | dict.fromkeys(one, 2) | dict.fromkeys(every, 3)


def test_failures_count_against_a_source_that_forbids_retries_unless_it_says_that_the_request_is_the_cause() -> None:
    for kind, in_service in ((K.TRANSIENT, True), (K.TIMEOUT, False), (K.UNREACHABLE, False)):
        driver = Driver({"a": 9, "b": 9})
        driver.mark("b", down=True)
        tasks = [driver.submit() for _ in range(9)]
        driver.mark("b", down=False)
        for task in tasks:
            driver.fail(live(task), kind, after=0.0, should_retry=False)
        assert [driver.where(task) for task in tasks] == ["b"] * 9
        assert driver["a"].health.in_service is in_service, kind


def test_the_wait_has_full_jitter_below_a_longest_wait_that_doubles_up_to_the_cap() -> None:
    for tries, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0), (10_000, 8.0)):
        rng = Random(7)
        waits = [backoff(1.0, 8.0, tries, rng) for _ in range(4000)]
        for quarter in range(4):
            share = sum(quarter <= 4 * wait / longest < quarter + 1 for wait in waits)
            assert share == pytest.approx(1000, rel=0.15), (tries, quarter)
