"""The rate of a key, kept over everything that starts."""

from __future__ import annotations

from calls_driver import AT_ONCE, Driver, Hedging, Rate


def test_no_more_than_size_start_in_any_window_and_none_later_than_that() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(3, 1.0))
    driver.calls(2, f)
    driver.wait(0.75)
    driver.calls(6, f)
    driver.wait(10.0)
    assert [at for at, _ in driver.watch.sends] == [0.0, 0.0, 0.75, 1.0, 1.0, 1.75, 2.0, 2.0]


def test_the_clock_is_woken_at_the_very_time_for_each_key() -> None:
    for window in (0.001, 0.1, 1 / 3, 60.0):
        driver = Driver()
        f = driver.function(rate=Rate(1, window), keyed=True)
        driver.now = 1e6 / 7
        starts = [driver.now]
        for _ in range(3):
            starts.append(starts[-1] + window)
        calls = [driver.call(f, key) for key in "abababab"]
        driver.wait(5 * window)
        assert [driver.begun(call)[0] for call in calls] == [start for start in starts for _ in "ab"], window


def test_retries_and_hedges_count() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(2, 10.0), retries=5, pause=AT_ONCE, hedging=Hedging(0.5, 0.0, 1, 1.0))
    call = driver.call(f)
    driver.fail(call, after=0.1)
    assert driver.begun(call) == [0.0, 0.1]
    driver.wait(9.0)
    assert len(driver.begun(call)) == 2, "the hedge waits"
    driver.wait(1.5)
    assert len(driver.begun(call)) == 3
    assert driver.tries(call)[1].hedge


def test_what_was_withdrawn_while_it_waited_takes_nothing() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(1, 1.0))
    calls = driver.calls(4, f)
    driver.withdraw(calls[1], calls[2])
    driver.wait(1.0)
    assert driver.begun(calls[3]) == [1.0]


def test_a_late_tick_neither_loses_a_call_nor_starts_more_than_is_allowed() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(2, 1.0))
    driver.calls(9, f)
    driver.now = 3.7
    driver.tick()
    assert [at for at, _ in driver.watch.sends] == [0.0, 0.0, 3.7, 3.7]
    driver.wait(9.0)
    assert len(driver.watch.sends) == 9


def test_when_the_first_leaves_while_a_tick_is_overdue_the_next_one_goes() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(1, 1.0))
    _, second, third = driver.calls(3, f)
    driver.now = 1.5
    driver.withdraw(second)
    assert driver.begun(third) == [1.5]


def test_a_call_that_comes_while_a_tick_is_overdue_overtakes_no_other() -> None:
    driver = Driver()
    f, g = driver.function("f", rate=Rate(1, 1.0), most=2), driver.function("g")
    driver.call(f)
    high = driver.call(f, level=0)
    driver.now = 1.5
    low = driver.call(g, level=9)
    assert driver.begun(high) == [1.5]
    assert not driver.begun(low)


def test_one_that_is_not_paced_is_hedged_after_those_that_are_have_gone() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(1, 10.0), hedging=Hedging(0.5, 0.0, 1, 1.0))
    hasty = driver.call(f, paced=False)
    waits = driver.call(f)
    driver.wait(9.9)
    assert len(driver.begun(hasty)) == 1
    driver.wait(1.0)
    assert driver.begun(waits)[0] == 10.0
    assert len(driver.begun(hasty)) == 2


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
