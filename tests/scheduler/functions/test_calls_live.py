"""Settings that change while calls wait and are under way, and a function that begins anew."""

from __future__ import annotations

from calls_desk import Adapting, Breaking, Desk, Hedging, Rate

from qreward.errors import CircuitOpen
from qreward.scheduler.functions.state import HEDGES_AT_ONCE


def test_a_higher_rate_holds_at_once_for_what_waits() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(1, 100.0))
    desk.calls(5, f)
    desk.wait(1.0)
    desk.change(f, rate=Rate(4, 100.0))
    assert len(desk.under_way()) == 4
    desk.change(f, rate=None)
    assert len(desk.under_way()) == 5


def test_a_lower_rate_holds_at_once_for_what_waits_and_what_comes() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(4, 1.0))
    desk.calls(6, f)
    desk.change(f, rate=Rate(1, 5.0))
    desk.call(f)
    desk.wait(20.0)
    assert [at for at, _ in desk.watch.sends] == [0.0] * 4 + [5.0, 10.0, 15.0]


def test_another_window_moves_the_time_of_waking() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(1, 100.0), keyed=True)
    for key in "aabb":
        desk.call(f, key)
    assert desk.scheduler.next_wake() == 100.0
    desk.change(f, rate=Rate(1, 3.0))
    assert desk.scheduler.next_wake() == 3.0
    desk.wait(3.0)
    assert len(desk.under_way()) == 4


def test_more_room_holds_at_once_and_less_room_stops_nobody() -> None:
    desk = Desk()
    f = desk.function(most=2)
    calls = desk.calls(8, f)
    desk.change(f, most=4)
    assert len(desk.under_way()) == 4
    desk.change(f, most=1)
    assert len(desk.under_way()) == 4
    for call in calls[:3]:
        desk.ok(call)
    assert len(desk.under_way()) == 1
    desk.ok(calls[3])
    assert desk.under_way() == [calls[4]]


def test_of_several_functions_in_a_group_the_least_number_holds() -> None:
    desk = Desk()
    f, g = desk.function("f", most=5), desk.function("g", most=2)
    desk.calls(5, f)
    assert len(desk.under_way()) == 2
    desk.change(g, most=None)
    assert len(desk.under_way()) == 5


def test_a_breaker_may_be_taken_away_given_and_recover_sooner_while_it_is_open() -> None:
    desk = Desk()
    f = desk.function(breaking=Breaking(1, 100.0))
    desk.fail(desk.call(f))
    desk.change(f, breaking=None)
    assert desk.begun(desk.call(f))
    desk.change(f, breaking=Breaking(1, 100.0))
    desk.fail(desk.call(f))
    assert isinstance(desk.outcome(desk.call(f)), CircuitOpen)
    desk.change(f, breaking=Breaking(1, 5.0))
    desk.wait(5.0)
    assert desk.begun(desk.call(f))


def test_a_call_keeps_its_own_number_of_retries_and_its_timeout() -> None:
    desk = Desk()
    f = desk.function(retries=2, timeout=10.0)
    call = desk.call(f)
    desk.change(f, retries=0, timeout=1.0)
    desk.fail(call, after=2.0, wait=0.0)
    assert len(desk.begun(call)) == 2


def test_adapting_may_begin_and_end() -> None:
    desk = Desk()
    f = desk.function(most=40)
    group = desk.scheduler.group
    desk.change(f, adapting=Adapting(2, 10, 0.3, None))
    assert group.limit == 10
    desk.change(f, adapting=Adapting(20, 30, 0.3, None))
    assert group.limit == 20
    desk.change(f, adapting=None)
    assert group.limit == 40


def test_which_of_several_that_adapt_a_group_is_heard_depends_on_nothing_but_what_they_say() -> None:
    for terms in ([7, 20, 90], [90, 20, 7]):
        desk = Desk()
        for number, most in enumerate(terms):
            desk.function(str(number), adapting=Adapting(1, most, 0.3, None))
        assert desk.scheduler.group.limit == 7


def test_a_function_that_joins_a_group_does_not_make_it_forget_the_limit_it_found() -> None:
    desk = Desk()
    f = desk.function(most=32, adapting=Adapting(2, 500, 0.3, None))
    desk.fail(desk.call(f), overloaded=True)
    assert desk.scheduler.group.limit == 16
    desk.function("g")
    assert desk.scheduler.group.limit == 16


# reset


def test_a_reset_forgets_counts_breakers_rates_and_limits_that_moved_and_lets_go_who_waits() -> None:
    desk = Desk()
    f = desk.function(rate=Rate(2, 100.0), breaking=Breaking(1, 100.0), hedging=Hedging(None, 0.9, 1, 1.0))
    g = desk.function("g", most=32, adapting=Adapting(2, 500, 0.3, None))
    desk.ok(desk.call(f))
    desk.fail(desk.call(f))
    desk.fail(desk.call(g), overloaded=True)
    desk.reset(f)
    assert (f.counters.calls, f.counters.tries, f.quantiles.count, f.hedges_left) == (0, 0, 0, HEDGES_AT_ONCE)
    assert desk.scheduler.group.limit == 32
    assert desk.begun(desk.call(f))
    desk.calls(3, f)
    assert len(desk.under_way()) == 2
    desk.reset(f)
    assert len(desk.under_way()) == 4


def test_after_a_reset_what_is_under_way_goes_on_and_counts_for_the_group() -> None:
    desk = Desk()
    f = desk.function(most=1, retries=1, rate=Rate(1, 2.0))
    call, waits = desk.calls(2, f)
    desk.reset(f)
    assert not desk.begun(waits)
    desk.ok(call, after=1.0)
    assert desk.begun(waits) == [1.0]
    desk.ok(waits)
    desk.watch.check_all_over()


def test_the_call_that_tests_an_open_breaker_decides_nothing_after_a_reset() -> None:
    for end in ("ok", "fail"):
        desk = Desk()
        f = desk.function(breaking=Breaking(2, 10.0))
        for _ in range(2):
            desk.fail(desk.call(f))
        desk.wait(10.0)
        probe = desk.call(f)
        desk.reset(f)
        assert desk.begun(desk.call(f)), "it is closed now"
        getattr(desk, end)(probe)
        assert desk.begun(desk.call(f)), end
