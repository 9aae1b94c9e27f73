"""Room that functions share, and whose turn it is."""

from __future__ import annotations

from calls_driver import AT_ONCE, Breaking, Driver, Hedging, Rate

from qreward.scheduler.outcome import CANCELLED, Answer
from qreward.scheduler.queue import AGEING

HIGH, NORMAL, LOW = 0, 5, 9


def test_never_more_are_in_flight_than_the_limit_over_all_keys_and_functions() -> None:
    driver = Driver()
    f, g = driver.function("f", most=3), driver.function("g", most=5, keyed=True)
    driver.calls(2, f)
    for key in "abcd":
        driver.call(g, key)
    assert len(driver.under_way()) == 3


def test_a_try_that_was_cancelled_holds_its_place_until_it_has_ended() -> None:
    driver = Driver()
    f = driver.function(most=1)
    first, second = driver.calls(2, f)
    (attempt,) = driver.tries(first)
    driver.withdraw(first)
    driver.wait(100.0)
    assert not driver.begun(second)
    driver.report(attempt, Answer("at last"))
    assert driver.begun(second) == [100.0]
    assert driver.outcome(first) is None


def test_the_most_urgent_goes_first_though_it_came_last() -> None:
    driver = Driver()
    f, g = driver.function("f", most=1), driver.function("g", keyed=True)
    busy = driver.call(f)
    low = [driver.call(f, level=LOW), driver.call(g, "a", level=LOW)]
    normal = [driver.call(g, "b", level=NORMAL), driver.call(f, level=NORMAL)]
    high = driver.call(g, "a", level=HIGH)
    order = []
    current = busy
    for _ in range(5):
        driver.ok(current)
        (current,) = driver.under_way()
        order.append(current)
    assert order == [high, *normal, *low]


def test_calls_that_have_waited_long_enough_go_before_urgent_ones() -> None:
    driver = Driver()
    f = driver.function(most=1)
    busy = driver.call(f)
    low = driver.call(f, level=LOW)
    driver.wait(AGEING * LOW - 1.0)
    sooner = driver.call(f, level=HIGH)
    driver.wait(2.0)
    later = driver.call(f, level=HIGH)
    order, current = [], busy
    for _ in range(3):
        driver.ok(current)
        (current,) = driver.under_way()
        order.append(current)
    assert order == [sooner, low, later]


def test_the_order_is_right_when_the_first_in_line_leaves() -> None:
    driver = Driver()
    f = driver.function(most=1, keyed=True)
    busy = driver.call(f, "z")
    high = driver.call(f, "a", level=HIGH)
    low = driver.call(f, "a", level=LOW)
    normal = driver.call(f, "b", level=NORMAL)
    driver.withdraw(high)
    driver.ok(busy)
    assert driver.under_way() == [normal]
    driver.ok(normal)
    assert driver.under_way() == [low]


def test_a_retry_goes_before_calls_that_came_later_and_behind_more_urgent_ones() -> None:
    """Though it may begin at once, and has just made room itself."""
    driver = Driver()
    f = driver.function(most=1, retries=3, pause=AT_ONCE)
    low = driver.call(f, level=LOW)
    high, later = driver.call(f, level=HIGH), driver.call(f, level=LOW)
    driver.fail(low)
    assert driver.under_way() == [high]
    driver.ok(high)
    assert driver.under_way() == [low]
    driver.fail(low)
    assert driver.under_way() == [low]
    driver.ok(low)
    assert driver.under_way() == [later]


def test_retries_that_are_due_together_go_by_priority() -> None:
    driver = Driver()
    f = driver.function(most=2, retries=3)
    g = driver.function("g", most=2)
    low, high = driver.call(f, level=LOW), driver.call(f, level=HIGH)
    driver.fail(low)
    driver.fail(high)
    busy = driver.call(g)
    driver.wait(1.0)
    assert driver.under_way() == [busy, high]


def test_a_key_with_a_used_up_rate_does_not_hold_back_others() -> None:
    driver = Driver()
    f, g = driver.function("f", most=2, rate=Rate(1, 10.0)), driver.function("g")
    driver.calls(3, f, level=HIGH)
    call = driver.call(g, level=LOW)
    assert driver.begun(call) == [0.0]


def test_a_key_that_becomes_ready_while_there_is_no_free_slot_waits_in_its_place() -> None:
    driver = Driver()
    f, g = driver.function("f", most=2, rate=Rate(1, 1.0)), driver.function("g")
    first, high = driver.call(f), driver.call(f, level=HIGH)
    busy = driver.call(g)
    low = driver.call(g, level=LOW)
    driver.wait(5.0)
    assert driver.under_way() == [first, busy]
    driver.ok(busy)
    assert driver.under_way() == [first, high]
    driver.ok(first)
    assert driver.under_way() == [high, low]


def test_withdrawing_and_timing_out_leaves_nothing_behind() -> None:
    driver = Driver()
    f = driver.function(most=1, rate=Rate(2, 5.0), retries=2, timeout=30.0, breaking=Breaking(9, 9.0), hedging=Hedging(1.0, 0.0, 1, 1.0))
    first, *others = driver.calls(6, f)
    (attempt,) = driver.tries(first)
    driver.withdraw(first, *others[:3])
    driver.wait(31.0)
    assert len(driver.scheduler._timers) == 0
    assert driver.scheduler.group.inflight == 1
    driver.report(attempt, CANCELLED)
    driver.watch.check_all_over()


def test_heaps_do_not_grow_while_calls_come_and_leave_and_there_is_never_a_free_slot() -> None:
    """Heap sizes are checked after each input."""
    driver = Driver()
    f, g = driver.function("f", most=1, keyed=True, rate=Rate(1, 1e6)), driver.function("g", timeout=5.0)
    busy = driver.call(g, timeout=None)
    for number in range(300):
        driver.withdraw(driver.call(f, number % 3, level=number % 10))
        driver.call(g, level=number % 10)
        driver.wait(0.1)
    driver.ok(busy)
    driver.wait(10.0)
    assert len(driver.scheduler.group.ready._heap) < 200
    assert len(driver.scheduler._wakes._heap) < 200
