"""Settings that change while calls wait and are under way, and a function that begins anew."""

from __future__ import annotations

from calls_driver import Adapting, Breaking, Driver, Hedging, Rate

from qreward.errors import CircuitOpen
from qreward.scheduler.functions import HEDGES_AT_ONCE


def test_another_rate_holds_at_once_for_what_waits_and_what_comes() -> None:
    """From 1 s on: a higher one, none, a lower one, a longer and a shorter window; when the tries of nine calls begin."""
    for rate, begun in (
        (Rate(4, 10.0), [0.0, 0.0, 1.0, 1.0, 10.0, 10.0, 11.0, 11.0, 20.0]),
        (None, [0.0, 0.0, *[1.0] * 7]),
        (Rate(1, 10.0), [0.0, 0.0, *[10.0 * number for number in range(1, 8)]]),
        (Rate(2, 20.0), [0.0, 0.0, 20.0, 20.0, 40.0, 40.0, 60.0, 60.0, 80.0]),
        (Rate(2, 0.5), [0.0, 0.0, 1.0, 1.0, 1.5, 1.5, 2.0, 2.0, 2.5]),
    ):
        driver = Driver()
        f = driver.function(rate=Rate(2, 10.0))
        driver.calls(8, f)
        driver.wait(1.0)
        driver.change(f, rate=rate)
        driver.call(f)
        driver.wait(100.0)
        assert [at for at, _ in driver.watch.sends] == begun, rate


def test_of_several_functions_in_a_group_the_least_number_holds() -> None:
    driver = Driver()
    f, g = driver.function("f", most=5), driver.function("g", most=2)
    driver.calls(5, f)
    assert len(driver.under_way()) == 2
    driver.change(g, most=None)
    assert len(driver.under_way()) == 5


def test_a_breaker_may_be_taken_away_given_and_recover_sooner_while_it_is_open() -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(1, 100.0))
    driver.fail(driver.call(f))
    driver.change(f, breaking=None)
    assert driver.begun(driver.call(f))
    driver.change(f, breaking=Breaking(1, 100.0))
    driver.fail(driver.call(f))
    assert isinstance(driver.outcome(driver.call(f)), CircuitOpen)
    driver.change(f, breaking=Breaking(3, 5.0))
    driver.wait(5.0)
    driver.fail(driver.call(f))
    assert isinstance(driver.outcome(driver.call(f)), CircuitOpen), "one failure is enough of the call that finds out"
    driver.wait(5.0)
    assert driver.begun(driver.call(f))


def test_a_call_keeps_its_own_number_of_retries_and_its_timeout() -> None:
    driver = Driver()
    f = driver.function(retries=2, timeout=10.0)
    call = driver.call(f)
    driver.change(f, retries=0, timeout=1.0)
    driver.fail(call, after=2.0, wait=0.0)
    assert len(driver.begun(call)) == 2


def test_adapting_may_begin_and_end() -> None:
    driver = Driver()
    f = driver.function(most=40)
    group = driver.scheduler
    driver.change(f, adapting=Adapting(2, 10, 0.3, None))
    assert group.limit == 10
    driver.change(f, adapting=Adapting(20, 30, 0.3, None))
    assert group.limit == 20
    driver.change(f, adapting=None)
    assert group.limit == 40


def test_of_several_that_adapt_a_group_the_strictest_is_heard_whatever_their_order() -> None:
    terms = [
        Adapting(1, 90, 0.3, 0.5),
        Adapting(1, 7, 0.5, 0.1),
        Adapting(1, 7, 0.3, None),
        Adapting(1, 7, 0.3, 0.5),
        Adapting(1, 7, 0.3, 2.0),
    ]
    for order in (terms, terms[::-1], terms[2:] + terms[:2]):
        driver = Driver()
        for number, adapting in enumerate(order):
            driver.function(str(number), adapting=adapting)
        assert driver.scheduler.limit == 7
        assert driver.scheduler.adaptive is not None
        assert driver.scheduler.adaptive.options.groups.adapting == Adapting(1, 7, 0.3, 0.5)


def test_a_function_that_joins_a_group_does_not_make_it_forget_the_limit_it_found() -> None:
    driver = Driver()
    f = driver.function(most=32, adapting=Adapting(2, 500, 0.3, None))
    driver.fail(driver.call(f), overloaded=True)
    assert driver.scheduler.limit == 16
    driver.function("g")
    assert driver.scheduler.limit == 16


# reset


def test_a_reset_forgets_counts_breakers_rates_and_limits_that_moved_and_starts_what_waits() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(2, 100.0), breaking=Breaking(1, 100.0), hedging=Hedging(None, 0.9, 1, 1.0))
    g = driver.function("g", most=32, adapting=Adapting(2, 500, 0.3, None))
    driver.ok(driver.call(f))
    driver.fail(driver.call(f))
    driver.fail(driver.call(g), overloaded=True)
    driver.reset(f)
    assert (f.counters.calls, f.counters.tries, f.quantiles.count, f.hedges_left) == (0, 0, 0, HEDGES_AT_ONCE)
    assert driver.scheduler.limit == 32
    assert driver.begun(driver.call(f))
    driver.calls(3, f)
    assert len(driver.under_way()) == 2
    driver.reset(f)
    assert len(driver.under_way()) == 4


def test_after_a_reset_what_is_under_way_goes_on_and_counts_for_the_group() -> None:
    driver = Driver()
    f = driver.function(most=1, retries=1, rate=Rate(1, 2.0))
    call, waits = driver.calls(2, f)
    driver.reset(f)
    assert not driver.begun(waits)
    driver.ok(call, after=1.0)
    assert driver.begun(waits) == [1.0]
    driver.ok(waits)
    driver.watch.check_all_over()


def test_the_call_that_tests_an_open_breaker_decides_nothing_after_a_reset() -> None:
    for end in ("ok", "fail"):
        driver = Driver()
        f = driver.function(breaking=Breaking(2, 10.0))
        for _ in range(2):
            driver.fail(driver.call(f))
        driver.wait(10.0)
        probe = driver.call(f)
        driver.reset(f)
        assert driver.begun(driver.call(f)), "it is closed now"
        getattr(driver, end)(probe)
        assert driver.begun(driver.call(f)), end
