"""Rates of keys, the limit that functions share, and the order of calls."""

from __future__ import annotations

from calls_driver import Driver, Rate

from qreward.scheduler.queue import AGEING

HIGH, NORMAL, LOW = 0, 5, 9


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


def test_a_reset_drops_the_keys_that_are_not_in_use() -> None:
    driver = Driver()
    f = driver.function(keyed=True, most=1)
    driver.ok(driver.call(f, "done"))
    driver.call(f, "busy")
    driver.reset(f)
    assert set(f.keys) == {"busy"}


def test_calls_that_have_waited_long_enough_go_before_urgent_ones() -> None:
    driver = Driver()
    f = driver.function(most=1)
    current = driver.call(f)
    low = driver.call(f, level=LOW)
    driver.wait(AGEING * LOW - 1.0)
    sooner = driver.call(f, level=HIGH)
    driver.wait(2.0)
    later = driver.call(f, level=HIGH)
    order = []
    for _ in range(3):
        driver.ok(current)
        (current,) = driver.under_way()
        order.append(current)
    assert order == [sooner, low, later]


# rates


def test_no_more_than_size_start_in_any_window_and_none_later_than_that() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(3, 1.0))
    driver.calls(2, f)
    driver.wait(0.75)
    driver.calls(6, f)
    driver.wait(10.0)
    assert [at for at, _ in driver.watch.sends] == [0.0, 0.0, 0.75, 1.0, 1.0, 1.75, 2.0, 2.0]


def test_one_that_is_not_paced_waits_for_no_rate_and_counts() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(1, 1.0), most=2)
    driver.call(f)
    hasty = driver.call(f, paced=False)
    assert driver.begun(hasty) == [0.0]
    paced, waits = driver.call(f), driver.call(f, paced=False)
    assert not driver.begun(waits), "there is no room"
    driver.ok(hasty, after=0.5)
    assert driver.begun(waits) == [0.5]
    driver.ok(waits)
    assert driver.begun(driver.call(f, paced=False)) == [0.5], "though another waits for the rate"
    driver.wait(3.0)
    assert not driver.begun(paced), "there is no room"


def test_a_call_that_comes_while_a_tick_is_overdue_overtakes_no_other() -> None:
    driver = Driver()
    f, g = driver.function("f", rate=Rate(1, 1.0), most=2), driver.function("g")
    driver.call(f)
    high = driver.call(f, level=0)
    driver.now = 1.5
    low = driver.call(g, level=9)
    assert driver.begun(high) == [1.5]
    assert not driver.begun(low)
