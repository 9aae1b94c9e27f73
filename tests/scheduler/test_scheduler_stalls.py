"""A source that holds requests and answers none for far longer than ever: called silent within seconds, and only then."""

from __future__ import annotations

from math import inf

import pytest
from scheduler_driver import Driver
from scheduler_warm import HANGS_ONLY, live, warm_all

from qreward.scheduler.outcome import Answer, FailureKind
from qreward.scheduler.stats import FACTOR, LEAST_ANSWERS, LEAST_DUE, LEAST_SECONDS, StallDetector
from qreward.scheduler.task import Attempt, Task, TaskState
from qreward.settings.policies import Hedge, LoadBalanceStrategy, Retry

K = FailureKind
MIXED = [20] * 63 + [400]
"""Lengths of which the longest is far from the usual, so that silence is noticed long before a single hang."""


def awake(answers: int = LEAST_ANSWERS, every: float = 0.1, inflight: int = 8, mean: float = 1.0) -> StallDetector:
    """One that was broken so often; the last time at 0, when nothing had been spent."""
    silence = StallDetector()
    now = -every * answers
    for number in range(1, inflight + 1):
        silence.sent(now, number, (inflight + 1) * now)
    for number in range(1, answers + 1):
        then = now + number * every
        silence.broken(then, inflight, mean, (inflight + 1) * then)
    return silence


# what is known of one source


def test_less_than_three_in_flight_are_never_silent_and_are_watched_again_when_they_are_more() -> None:
    silence = awake()
    silence.ended(2)
    assert silence.since == inf
    assert silence.alarm_at(5.0, 2, 1.0, 40.0) == inf
    silence.sent(5.0, 3, 40.0)
    assert silence.since == 5.0
    assert silence.alarm_at(5.0, 3, 1.0, 40.0) >= 5.0 + LEAST_SECONDS


def test_requests_that_another_source_answered_first_are_missing_answers_of_a_source_that_has_never_answered() -> None:
    for answers, beaten, since in ((0, True, 0.0), (0, False, inf), (LEAST_ANSWERS, True, inf)):
        silence = StallDetector() if answers == 0 else awake(answers)
        silence.sent(0.0, 8, 0.0)
        for left in range(7, 0, -1):
            silence.ended(left, beaten=beaten)
        assert silence.since == since, (answers, beaten)
    silence = StallDetector()
    silence.sent(0.0, 8, 0.0)
    assert silence.alarm_at(0.0, 8, 10.0, 0.0, new=True) == LEAST_DUE * 10.0 / 8
    for left in range(7, 0, -1):
        silence.ended(left, beaten=True)
    assert silence.alarm_at(20.0, 1, 10.0, 160.0, new=True) == 20.0 + (LEAST_DUE * 10.0 - 160.0)  # what was spent before counts
    silence.ended(0, beaten=True)
    assert silence.since == inf  # nothing is owed any more


def test_after_twenty_answers_so_many_must_be_missing_and_some_seconds_must_have_passed() -> None:
    assert awake(LEAST_ANSWERS - 1).alarm_at(0.0, 8, 1.0, 0.0) == inf
    for inflight, mean, seconds in ((64, 0.1, LEAST_SECONDS), (8, 1.0, LEAST_DUE / 8), (64, 20.0, LEAST_DUE * 20 / 64)):
        alarm = awake(inflight=inflight, mean=mean, every=0.01).alarm_at(0.0, inflight, mean, 0.0)
        assert alarm == pytest.approx(seconds), (inflight, mean)


def test_silences_as_long_as_before_are_normal_at_any_load_until_they_are_long_ago() -> None:
    silence = awake(every=10.0, inflight=7)  # 10 s without one of 8 answers of a second each: 80 were due
    for inflight, mean, seconds in ((8, 1.0, 10.0), (4, 1.0, 20.0), (8, 2.0, 20.0)):
        assert silence.alarm_at(0.0, inflight, mean, 0.0) == pytest.approx(FACTOR * seconds, rel=0.02), (inflight, mean)
    before = silence.alarm_at(0.0, 8, 1.0, 0.0)
    for number in range(10_000):
        silence.broken(number * 0.1, 8, 1.0, 9 * number * 0.1)
    assert silence.alarm_at(999.9, 8, 1.0, 9 * 999.9) - 999.9 < 0.2 * before


# through the scheduler


def serve(driver: Driver, seconds: float, mute: str = "", takes: float = 1.0) -> None:
    """Let all sources but one answer, each request after so many seconds."""
    end = driver.now + seconds
    while True:
        due = [attempt for attempt in driver.watch.live if attempt.source.name != mute and attempt.sent_at + takes <= end]
        if not due:
            driver.until(end)
            return
        first = min(due, key=lambda attempt: attempt.sent_at)
        driver.until(max(driver.now, first.sent_at + takes))
        if first in driver.watch.live:
            driver.report(first, Answer("yes", 10, 20))


def all_silent(hedge: Hedge | None = HANGS_ONLY) -> tuple[Driver, list[Attempt]]:
    """``a`` holds as much as it may and does not answer any more, while the others go on."""
    driver = warm_all(Driver({"a": 8, "b": 8, "c": 8}, hedge=hedge), lengths=MIXED)
    driver.feed(400)
    serve(driver, 2.0)
    serve(driver, 0.9)
    held = driver.at("a")
    assert len(held) == 8
    return driver, held


def until_left_alone(driver: Driver, mute: str = "a", most: float = 60.0) -> float:
    began = driver.now
    while driver[mute].health.in_service:
        serve(driver, 0.25, mute)
        assert driver.now - began < most, f"{mute} is still asked after {most} s"
    return driver.now - began


def test_a_source_that_goes_silent_is_left_alone_within_seconds() -> None:
    for hedge in (HANGS_ONLY, None):
        driver, held = all_silent(hedge)
        assert until_left_alone(driver) < 10.0
        sends = len(driver.watch.sends)
        serve(driver, 5.0, "a")
        assert all(attempt.source.name != "a" for _, attempt in driver.watch.sends[sends:])
        assert len(driver.watch.sends) > sends
        assert not any(driver.is_cancelled(attempt) for attempt in held if attempt.task in driver.watch.open)
        if hedge is None:
            assert all(attempt.task.copy is None and attempt.task.state is TaskState.SENT for attempt in held)
            assert driver["b"].tally.hedged == driver["c"].tally.hedged == 0


def test_what_a_silent_source_holds_is_copied_at_once_ahead_of_what_waits() -> None:
    driver, held = all_silent()
    until_left_alone(driver)
    sends = len(driver.watch.sends)
    serve(driver, 1.1, "a")
    copied = [attempt.task for _, attempt in driver.watch.sends[sends:]][:8]
    assert all(attempt.task.copy is not None or attempt.task in copied for attempt in held)
    serve(driver, 2.0, "a")
    assert all(isinstance(driver.outcome(attempt.task), Answer) for attempt in held)
    assert all(driver.is_cancelled(attempt) for attempt in held)


def test_an_answer_brings_a_silent_source_back_at_once() -> None:
    driver, held = all_silent()
    until_left_alone(driver)
    driver.ok(held[0], after=0.3)
    assert (driver["a"].health.in_service, driver["a"].health.half_open) == (True, False)
    assert len(driver.at("a")) == 8, "it is given work again"
    gone, back = driver.scheduler.health_changes
    assert (gone.source, back.source, back.reason) == ("a", "a", "")
    assert gone.reason.startswith("none of 8 requests in flight was answered for ")
    assert 0.3 <= back.seconds < 0.6


def test_a_server_that_answers_all_at_once_is_not_called_silent_until_it_is() -> None:
    """32 requests, answered every 5 s: at a mean of 2.5 s that is 64 answers due each time."""
    driver = Driver({"a": 32, "b": 100}, strategy=LoadBalanceStrategy.ROUND_ROBIN)
    for _ in range(12):
        for _ in range(25):
            driver.submit()
            driver.submit()
            driver.wait(0.2)
            for attempt in driver.at("b"):
                driver.report(attempt, Answer("yes", 10, 20))
            assert driver["a"].health.in_service
        for attempt in driver.at("a"):
            driver.report(attempt, Answer("yes", 10, 20))
    for _ in range(40):
        driver.submit()
    assert until_left_alone(driver) <= FACTOR * 5.0 + 5.0


def after_failing(driver: Driver, count: int, *, poison: bool) -> list[Task]:
    """So many tasks at ``a``, which have failed at ``b`` before if they are poison."""
    if not poison:
        driver.mark("b", down=True)
        tasks = [driver.submit() for _ in range(count)]
        driver.mark("b", down=False)
        return tasks
    driver.mark("a", down=True)
    tasks = [driver.submit() for _ in range(count)]
    driver.mark("a", down=False)
    for task in tasks:
        driver.fail(live(task), K.TRANSIENT, after=0.0)
    driver.wait(1.0)
    assert len(driver.at("a")) == count
    return tasks


def test_three_requests_may_show_a_silence_but_not_if_they_have_failed_elsewhere() -> None:
    for count, poison, left_alone in ((3, False, True), (3, True, False), (2, False, False)):
        driver = warm_all(Driver({"a": 4, "b": 4}, retry=Retry(base=0.01)))
        after_failing(driver, count, poison=poison)
        driver.wait(8.5)
        assert driver["a"].health.in_service is not left_alone, (count, poison)


def test_the_last_source_is_never_left_alone() -> None:
    driver, held = all_silent()
    driver.mark("b", down=True)
    driver.mark("c", down=True)
    for _ in range(90):
        driver.wait(0.1)
        assert driver["a"].health.in_service
    assert not any(attempt.task.copy for attempt in held)
    assert driver["a"].silence.since > held[0].sent_at + 2, "it is asked anew from time to time, not all the time"


def test_after_a_stall_of_the_loop_no_source_is_called_silent_until_answers_could_be_read() -> None:
    driver, _ = all_silent()
    wake = driver.scheduler.next_wake()
    assert wake is not None
    driver.now = wake + 30.0
    driver.tick()
    driver.wait(0.08)
    assert all(source.health.in_service for source in driver.sources.values())
    for name in "abc":
        driver.ok(driver.at(name)[0], after=0.0)
    driver.wait(1.0)
    assert all(source.health.in_service for source in driver.sources.values())


def test_failures_that_come_from_the_source_are_signs_of_life_and_those_that_do_not_are_none() -> None:
    driver, held = all_silent(hedge=None)
    driver.fail(held[0], K.TRANSIENT, after=1.0)
    alive = driver["a"].silence.since
    assert alive == driver.now
    for attempt, kind in zip(held[1:4], (K.UNREACHABLE, K.TIMEOUT, K.LOCAL), strict=True):
        driver.fail(attempt, kind, after=0.1)
        assert driver["a"].silence.since == alive
