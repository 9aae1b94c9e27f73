"""A second try beside the first: when, how many, and who wins."""

from __future__ import annotations

import pytest
from calls_driver import AT_ONCE, Breaking, Driver, Hedging

from qreward.scheduler.functions import ENOUGH, HEDGES_AT_ONCE
from qreward.scheduler.task import CancelReason

AFTER = Hedging(0.5, 0.0, 1, 1.0)


def test_it_is_made_after_so_many_seconds_and_the_first_result_wins() -> None:
    for wins in (True, False):
        driver = Driver()
        f = driver.function(hedging=AFTER)
        call = driver.call(f)
        driver.wait(0.5)
        assert driver.begun(call) == [0.0, 0.5]
        first, hedge = driver.tries(call)
        assert (first.is_copy, hedge.is_copy) == (False, True)
        winner, loser = (hedge, first) if wins else (first, hedge)
        driver.ok(winner, after=0.1)
        assert driver.is_ok(call)
        assert list(driver.watch.cancels) == [loser]
        assert loser.cancel_reason is CancelReason.BEATEN
        assert (f.counters.hedges, f.counters.hedges_won) == (1, wins)


def test_a_quantile_is_used_once_enough_is_known() -> None:
    driver = Driver()
    f = driver.function(hedging=Hedging(None, 0.9, 1, 1.0))
    for _ in range(ENOUGH - 1):
        driver.ok(driver.call(f), after=0.2)
    early = driver.call(f)
    driver.wait(60.0)
    assert len(driver.begun(early)) == 1
    driver.ok(driver.call(f), after=0.2)
    late = driver.call(f)
    driver.wait(0.3)
    assert driver.begun(late)[1] - driver.begun(late)[0] == pytest.approx(0.2, rel=0.15)


def test_at_most_so_many_are_made_of_one_call() -> None:
    driver = Driver()
    call = driver.call(driver.function(hedging=Hedging(0.5, 0.0, 3, 1.0)))
    driver.wait(60.0)
    assert driver.begun(call) == [0.0, 0.5, 1.0, 1.5]


def test_over_all_calls_no_more_than_the_reserve_and_their_share_are_made() -> None:
    driver = Driver()
    f = driver.function(hedging=Hedging(0.5, 0.0, 1, 0.25))
    for _ in range(100):
        call = driver.call(f)
        driver.wait(0.5)
        driver.ok(call)
        for attempt in list(driver.watch.cancels):
            driver.stopped(attempt)
    assert f.counters.hedges == HEDGES_AT_ONCE + 25


def test_none_is_made_without_a_free_start_but_later_and_its_time_counts_from_its_first_try() -> None:
    driver = Driver()
    f = driver.function(hedging=AFTER, most=2)
    slow, other, waits = driver.calls(3, f)
    driver.wait(0.75)
    assert len(driver.watch.sends) == 2
    driver.ok(other)
    assert driver.begun(waits) == [0.75], "a call that waits goes first"
    driver.wait(0.4)
    driver.ok(slow)
    driver.wait(0.1)
    assert len(driver.begun(slow)) == 1
    assert driver.begun(waits) == [0.75, 1.25]


def test_when_one_of_the_two_fails_the_other_goes_on() -> None:
    for which in (0, 1):
        driver = Driver()
        call = driver.call(driver.function(hedging=AFTER))
        driver.wait(0.5)
        tries = driver.tries(call)
        driver.fail(tries[which])
        assert driver.outcome(call) is None
        assert not tries[1 - which].cancel_reason
        driver.ok(tries[1 - which])
        assert driver.is_ok(call)


def test_when_both_fail_the_call_is_tried_again_as_often_as_without_hedges() -> None:
    driver = Driver()
    call = driver.call(driver.function(hedging=AFTER, retries=2, pause=AT_ONCE))
    driver.wait(0.5)
    for attempt in driver.tries(call):
        driver.fail(attempt)
    assert call.retries == 1
    driver.fail(call)
    assert call.retries == 2
    error = driver.fail(call)
    assert driver.outcome(call) is error
    assert len(driver.begun(call)) == 4


def test_a_retry_is_hedged_like_a_first_try() -> None:
    driver = Driver()
    call = driver.call(driver.function(hedging=AFTER, retries=2, pause=AT_ONCE))
    driver.fail(call, after=0.25)
    driver.wait(0.5)
    assert driver.begun(call) == [0.0, 0.25, 0.5]
    assert driver.tries(call)[1].is_copy, "counted from the first try"


def test_while_the_breaker_is_open_none_is_made_and_none_finds_out() -> None:
    driver = Driver()
    f = driver.function(hedging=AFTER, breaking=Breaking(1, 0.25))
    slow, bad = driver.calls(2, f)
    driver.fail(bad)
    driver.wait(1.0)
    assert len(driver.begun(slow)) == 1
    probe = driver.call(f)
    assert driver.begun(probe), "the slow one has not taken its place"


def test_a_call_that_ended_while_the_process_was_held_is_not_hedged_and_one_that_hangs_is() -> None:
    driver = Driver()
    f = driver.function(hedging=Hedging(0.3, 0.0, 1, 0.05))
    ended, hang = driver.calls(60, f), driver.call(f)
    driver.now = 0.35  # the process was held: the calls have ended at 0.25, but the timer is first
    driver.tick()
    for call in ended:
        driver.ok(call)
    assert f.counters.hedges == 0
    driver.wait(0.1)
    assert len(driver.begun(hang)) == 2
    again = driver.call(f, hedging=Hedging(0.3, 0.0, 2, 0.05))
    for _ in range(2):  # always late: put off once, not for ever
        driver.now += 1.0
        driver.tick()
    assert len(driver.begun(again)) == 2
