"""Room that functions share, and whose turn it is."""

from __future__ import annotations

from calls_desk import AT_ONCE, Breaking, Desk, Hedging, Rate

from qreward.scheduler.outcome import CANCELLED, Answer
from qreward.scheduler.queue import AGEING

HIGH, NORMAL, LOW = 0, 5, 9


def test_never_more_are_in_flight_than_the_limit_over_all_keys_and_functions() -> None:
    desk = Desk()
    f, g = desk.function("f", most=3), desk.function("g", most=5, keyed=True)
    desk.calls(2, f)
    for key in "abcd":
        desk.call(g, key)
    assert len(desk.under_way()) == 3


def test_a_try_that_was_cancelled_holds_its_place_until_it_has_ended() -> None:
    desk = Desk()
    f = desk.function(most=1)
    first, second = desk.calls(2, f)
    (attempt,) = desk.tries(first)
    desk.withdraw(first)
    desk.wait(100.0)
    assert not desk.begun(second)
    desk.report(attempt, Answer("at last"))
    assert desk.begun(second) == [100.0]
    assert desk.outcome(first) is None


def test_the_most_urgent_goes_first_though_it_came_last() -> None:
    desk = Desk()
    f, g = desk.function("f", most=1), desk.function("g", keyed=True)
    busy = desk.call(f)
    low = [desk.call(f, level=LOW), desk.call(g, "a", level=LOW)]
    normal = [desk.call(g, "b", level=NORMAL), desk.call(f, level=NORMAL)]
    high = desk.call(g, "a", level=HIGH)
    order = []
    current = busy
    for _ in range(5):
        desk.ok(current)
        (current,) = desk.under_way()
        order.append(current)
    assert order == [high, *normal, *low]


def test_who_has_waited_long_enough_goes_before_the_urgent() -> None:
    desk = Desk()
    f = desk.function(most=1)
    busy = desk.call(f)
    low = desk.call(f, level=LOW)
    desk.wait(AGEING * LOW - 1.0)
    sooner = desk.call(f, level=HIGH)
    desk.wait(2.0)
    later = desk.call(f, level=HIGH)
    order, current = [], busy
    for _ in range(3):
        desk.ok(current)
        (current,) = desk.under_way()
        order.append(current)
    assert order == [sooner, low, later]


def test_the_order_is_right_when_the_first_in_line_leaves() -> None:
    desk = Desk()
    f = desk.function(most=1, keyed=True)
    busy = desk.call(f, "z")
    high = desk.call(f, "a", level=HIGH)
    low = desk.call(f, "a", level=LOW)
    normal = desk.call(f, "b", level=NORMAL)
    desk.withdraw(high)
    desk.ok(busy)
    assert desk.under_way() == [normal]
    desk.ok(normal)
    assert desk.under_way() == [low]


def test_a_retry_goes_before_calls_that_came_later_and_behind_more_urgent_ones() -> None:
    """Though it may begin at once, and has just made room itself."""
    desk = Desk()
    f = desk.function(most=1, retries=3, pause=AT_ONCE)
    low = desk.call(f, level=LOW)
    high, later = desk.call(f, level=HIGH), desk.call(f, level=LOW)
    desk.fail(low)
    assert desk.under_way() == [high]
    desk.ok(high)
    assert desk.under_way() == [low]
    desk.fail(low)
    assert desk.under_way() == [low]
    desk.ok(low)
    assert desk.under_way() == [later]


def test_retries_that_are_due_together_go_by_priority() -> None:
    desk = Desk()
    f = desk.function(most=2, retries=3)
    g = desk.function("g", most=2)
    low, high = desk.call(f, level=LOW), desk.call(f, level=HIGH)
    desk.fail(low)
    desk.fail(high)
    busy = desk.call(g)
    desk.wait(1.0)
    assert desk.under_way() == [busy, high]


def test_a_key_whose_rate_is_used_up_keeps_nobody_else_from_going() -> None:
    desk = Desk()
    f, g = desk.function("f", most=2, rate=Rate(1, 10.0)), desk.function("g")
    desk.calls(3, f, level=HIGH)
    call = desk.call(g, level=LOW)
    assert desk.begun(call) == [0.0]


def test_a_key_that_becomes_ready_while_there_is_no_room_waits_in_its_place() -> None:
    desk = Desk()
    f, g = desk.function("f", most=2, rate=Rate(1, 1.0)), desk.function("g")
    first, high = desk.call(f), desk.call(f, level=HIGH)
    busy = desk.call(g)
    low = desk.call(g, level=LOW)
    desk.wait(5.0)
    assert desk.under_way() == [first, busy]
    desk.ok(busy)
    assert desk.under_way() == [first, high]
    desk.ok(first)
    assert desk.under_way() == [high, low]


def test_withdrawing_and_timing_out_leaves_nothing_behind() -> None:
    desk = Desk()
    f = desk.function(most=1, rate=Rate(2, 5.0), retries=2, timeout=30.0, breaking=Breaking(9, 9.0), hedging=Hedging(1.0, 0.0, 1, 1.0))
    first, *others = desk.calls(6, f)
    (attempt,) = desk.tries(first)
    desk.withdraw(first, *others[:3])
    desk.wait(31.0)
    assert len(desk.scheduler._timers) == 0
    assert desk.scheduler.group.inflight == 1
    desk.report(attempt, CANCELLED)
    desk.watch.check_all_over()


def test_heaps_do_not_grow_while_calls_come_and_leave_and_there_is_never_room() -> None:
    """Heap sizes are checked after each input."""
    desk = Desk()
    f, g = desk.function("f", most=1, keyed=True, rate=Rate(1, 1e6)), desk.function("g", timeout=5.0)
    busy = desk.call(g, timeout=None)
    for number in range(300):
        desk.withdraw(desk.call(f, number % 3, level=number % 10))
        desk.call(g, level=number % 10)
        desk.wait(0.1)
    desk.ok(busy)
    desk.wait(10.0)
    assert len(desk.scheduler.group.ready._heap) < 200
    assert len(desk.scheduler._wakes._heap) < 200
