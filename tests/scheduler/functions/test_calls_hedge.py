"""A second try beside the first: when, how many, and who wins."""

from __future__ import annotations

import pytest
from calls_desk import AT_ONCE, Breaking, Desk, Hedging, Rate

from qreward.scheduler.functions.state import ENOUGH, HEDGES_AT_ONCE
from qreward.scheduler.state import CancelReason

AFTER = Hedging(0.5, 0.0, 1, 1.0)


def test_it_is_made_after_so_many_seconds_and_the_first_result_wins() -> None:
    for wins in (True, False):
        desk = Desk()
        f = desk.function(hedging=AFTER)
        call = desk.call(f)
        desk.wait(0.5)
        assert desk.begun(call) == [0.0, 0.5]
        first, hedge = desk.tries(call)
        assert (first.hedge, hedge.hedge) == (False, True)
        winner, loser = (hedge, first) if wins else (first, hedge)
        desk.ok(winner, after=0.1)
        assert desk.is_ok(call)
        assert list(desk.watch.cancels) == [loser]
        assert loser.cancel_reason is CancelReason.BEATEN
        assert (f.counters.hedges, f.counters.hedges_won) == (1, wins)


def test_a_call_that_had_to_wait_for_room_is_hedged_too() -> None:
    desk = Desk()
    f = desk.function(hedging=AFTER, most=2)
    g = desk.function("g")
    one, two = desk.calls(2, g)
    call = desk.call(f)
    desk.ok(one, after=1.0)
    desk.ok(two)
    desk.wait(0.6)
    assert desk.begun(call) == [1.0, 1.5]


def test_a_quantile_is_used_once_enough_is_known() -> None:
    desk = Desk()
    f = desk.function(hedging=Hedging(None, 0.9, 1, 1.0))
    for _ in range(ENOUGH - 1):
        desk.ok(desk.call(f), after=0.2)
    early = desk.call(f)
    desk.wait(60.0)
    assert len(desk.begun(early)) == 1
    desk.ok(desk.call(f), after=0.2)
    late = desk.call(f)
    desk.wait(0.3)
    assert desk.begun(late)[1] - desk.begun(late)[0] == pytest.approx(0.2, rel=0.15)


def test_at_most_so_many_are_made_of_one_call() -> None:
    desk = Desk()
    call = desk.call(desk.function(hedging=Hedging(0.5, 0.0, 3, 1.0)))
    desk.wait(60.0)
    assert desk.begun(call) == [0.0, 0.5, 1.0, 1.5]


def test_over_all_calls_no_more_than_the_reserve_and_their_share_are_made() -> None:
    desk = Desk()
    f = desk.function(hedging=Hedging(0.5, 0.0, 1, 0.25))
    for _ in range(100):
        call = desk.call(f)
        desk.wait(0.5)
        desk.ok(call)
        for attempt in list(desk.watch.cancels):
            desk.stopped(attempt)
    assert f.counters.hedges == HEDGES_AT_ONCE + 25


def test_none_is_made_without_a_free_start_but_later() -> None:
    desk = Desk()
    f = desk.function(hedging=AFTER, most=2)
    slow, other = desk.calls(2, f)
    desk.wait(0.75)
    assert len(desk.watch.sends) == 2
    desk.ok(other)
    desk.wait(0.5)
    assert len(desk.begun(slow)) == 2


def test_when_one_of_the_two_fails_the_other_goes_on() -> None:
    for which in (0, 1):
        desk = Desk()
        call = desk.call(desk.function(hedging=AFTER))
        desk.wait(0.5)
        tries = desk.tries(call)
        desk.fail(tries[which])
        assert desk.outcome(call) is None
        assert not tries[1 - which].cancel_reason
        desk.ok(tries[1 - which])
        assert desk.is_ok(call)


def test_when_both_fail_the_call_is_tried_again_as_often_as_without_hedges() -> None:
    desk = Desk()
    call = desk.call(desk.function(hedging=AFTER, retries=2, pause=AT_ONCE))
    desk.wait(0.5)
    for attempt in desk.tries(call):
        desk.fail(attempt)
    assert call.retries == 1
    desk.fail(call)
    assert call.retries == 2
    error = desk.fail(call)
    assert desk.outcome(call) is error
    assert len(desk.begun(call)) == 4


def test_a_retry_is_hedged_like_a_first_try() -> None:
    desk = Desk()
    call = desk.call(desk.function(hedging=AFTER, retries=2, pause=AT_ONCE))
    desk.fail(call, after=0.25)
    desk.wait(0.5)
    assert desk.begun(call) == [0.0, 0.25, 0.5]
    assert desk.tries(call)[1].hedge, "counted from the first try"


def test_while_the_breaker_is_open_none_is_made_and_none_finds_out() -> None:
    desk = Desk()
    f = desk.function(hedging=AFTER, breaking=Breaking(1, 0.25))
    slow, bad = desk.calls(2, f)
    desk.fail(bad)
    desk.wait(1.0)
    assert len(desk.begun(slow)) == 1
    probe = desk.call(f)
    assert desk.begun(probe), "the slow one has not taken its place"


def test_a_hedge_counts_for_the_rate_and_waits_behind_nobody() -> None:
    desk = Desk()
    f = desk.function(hedging=AFTER, rate=Rate(2, 10.0))
    calls = desk.calls(3, f)
    desk.wait(9.9)
    assert [len(desk.begun(call)) for call in calls] == [1, 1, 0]
    desk.wait(1.0)
    assert len(desk.begun(calls[2])) == 1
    assert len(desk.watch.sends) == 4
