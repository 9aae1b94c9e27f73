"""What happens when a function says that there are too many."""

from __future__ import annotations

from itertools import product

from calls_driver import Adapting, Driver, Longest, Rate, Shortest

from qreward.scheduler.functions import Function


def test_a_hint_closes_the_key_for_all_its_calls_for_exactly_so_long() -> None:
    for hint, rng in product((0.05, 0.3, 20.0), (Shortest(), Longest())):
        driver = Driver(rng)
        f = driver.function(keyed=True, most=2)
        first, second, waits = (driver.call(f, "a") for _ in range(3))
        driver.fail(first, after=1.0, wait=hint, overloaded=True)
        driver.fail(second)
        later = driver.call(f, "a")
        assert driver.begun(driver.call(f, "b")) == [1.0]
        driver.wait(hint)
        assert driver.begun(waits) == [1.0 + hint], "it waited for room"
        driver.ok(waits)
        assert driver.begun(later) == [1.0 + hint]


def test_each_try_that_succeeds_while_the_key_is_closed_lets_one_more_begin() -> None:
    driver = Driver()
    f = driver.function(keyed=True, most=3)
    first, second, third, *waits = (driver.call(f, "a") for _ in range(6))
    driver.fail(first, after=1.0, wait=9.0, overloaded=True)
    driver.ok(second, after=1.0)
    assert [driver.begun(call) for call in waits] == [[2.0], [], []]
    driver.fail(third, after=1.0)
    driver.ok(waits[0], after=1.0)
    assert [driver.begun(call) for call in waits] == [[2.0], [4.0], []]
    driver.fail(waits[1], after=1.0, wait=20.0, overloaded=True)
    driver.until(25.0)
    assert driver.begun(waits[2]) == [25.0], "room that nobody used is over when the key opens"


def test_the_longest_of_several_hints_holds_and_without_one_only_the_call_itself_waits() -> None:
    driver = Driver()
    f = driver.function(retries=1)
    one, two, three = driver.calls(3, f)
    driver.fail(three, overloaded=True)
    assert driver.begun(driver.call(f)) == [0.0]
    driver.fail(one, wait=5.0, overloaded=True)
    driver.fail(two, wait=2.0, overloaded=True)
    assert f.counters.overloaded == 3
    call = driver.call(f)
    driver.wait(9.0)
    assert driver.begun(call) == [5.0]


# the limit that moves


def run(driver: Driver, f: Function, count: int, *, ok: bool = False) -> None:
    """So many calls, as many at once as may be, each ending after a second."""
    calls = driver.calls(count, f)
    while any(not call.done for call in calls):
        driver.wait(1.0)
        for call in driver.under_way():
            if ok:
                driver.ok(call)
            else:
                driver.fail(call)


def test_the_limit_of_the_group_falls_when_tries_fail_are_slow_time_out_or_are_turned_away_and_is_what_is_enforced() -> None:
    for what, seconds, timeout in (("fails", None, None), ("slow", 0.5, None), ("times out", None, 1.0), ("turned away", None, None)):
        driver = Driver()
        f = driver.function(most=32, adapting=Adapting(2, 500, 0.3, seconds), timeout=timeout)
        if what == "turned away":
            for call in driver.calls(32, f):
                driver.fail(call, after=0.01, overloaded=True)
        elif what == "times out":
            driver.calls(32, f)
            driver.wait(2.0)
            for attempt in list(driver.watch.live):
                driver.stopped(attempt)
        else:
            run(driver, f, 32, ok=what == "slow")
        assert driver.scheduler.limit == 16, what
        driver.calls(100, f)
        assert len(driver.under_way()) == 16, what


def test_with_a_rate_it_is_the_rate_of_the_key_that_moves_and_never_beyond_what_is_set() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(20, 10.0), adapting=Adapting(2, 500, 0.3, None), keyed=True)
    for call in [driver.call(f, "a") for _ in range(20)]:
        driver.fail(call)
    key = f.keys["a"]
    assert key.limit == 10
    assert driver.scheduler.limit == float("inf")
    driver.wait(10.0)
    calls = [driver.call(f, "a") for _ in range(50)]
    assert sum(bool(driver.begun(call)) for call in calls) == 10
    assert driver.begun(driver.call(f, "b")), "another key is not concerned"
    for _ in range(400):
        for call in driver.under_way():
            driver.ok(call)
        driver.call(f, "a")
        driver.wait(0.25)
    assert key.limit == 20


def test_a_key_that_was_asked_to_be_left_alone_does_not_want_a_higher_rate() -> None:
    driver = Driver()
    f = driver.function(rate=Rate(20, 10.0), adapting=Adapting(2, 500, 0.3, None))
    (away, *calls) = driver.calls(20, f)
    driver.fail(away, wait=100.0, overloaded=True)
    key = f.keys[None]
    assert key.limit == 10, "it falls at once"
    driver.change(f, rate=Rate(20, 9.0))
    assert key.limit == 10, "another window does not raise it"
    driver.change(f, rate=Rate(20, 10.0))
    adaptive = key.adaptive
    assert adaptive is not None
    driver.call(f)
    driver.wait(20.0)
    adaptive.wanted = False
    driver.call(f)
    for call in calls:
        driver.ok(call)
    assert not adaptive.wanted
