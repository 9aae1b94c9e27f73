"""Keys are forgotten when nothing need be known of them any more, and not before."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from calls_driver import Adapting, Breaking, Driver, FunctionOptions, Rate

from qreward.errors import CircuitOpen
from qreward.scheduler.function_limits import MEMORY
from qreward.scheduler.functions import FORGETS, Call, CallFailure, CallScheduler, Function
from qreward.scheduler.outcome import Answer
from qreward.scheduler.scheduler import SEND


def keys(driver: Driver, f: Function) -> set[object]:
    """Those that are known once all has been forgotten that may be."""
    for _ in range(len(f.keys)):
        f.forget(driver.now)
    return set(f.keys)


def used_again(driver: Driver, f: Function) -> None:
    driver.ok(driver.call(f, "a"))
    driver.wait(6.0)
    driver.ok(driver.call(f, "a"))


def refused(driver: Driver, f: Function) -> None:
    driver.fail(driver.call(f, "a"))
    driver.call(f, "a")


def never_tried(driver: Driver, f: Function) -> None:
    busy = driver.call(driver.function("g", most=1))
    driver.withdraw(driver.call(f, "a"))
    driver.ok(busy)


def reset(driver: Driver, f: Function) -> None:
    driver.ok(driver.call(f, "a"))
    call = driver.call(f, "a")
    driver.reset(f)
    driver.ok(call)


PAST: dict[str, tuple[dict[str, Any], Callable[[Driver, Function], object], float]] = {
    "no past": ({"breaking": Breaking(3, 10.0)}, lambda driver, f: driver.ok(driver.call(f, "a")), 0.0),
    "its starts count": ({"rate": Rate(2, 10.0)}, lambda driver, f: driver.ok(driver.call(f, "a")), 10.0),
    "used again": ({"rate": Rate(2, 10.0)}, used_again, 10.0),
    "failures": ({"breaking": Breaking(2, 1.0)}, lambda driver, f: driver.fail(driver.call(f, "a"), after=100.0), MEMORY),
    "it asked to be left alone": ({}, lambda driver, f: driver.fail(driver.call(f, "a"), wait=500.0, overloaded=True), 500.0),
    "a paced one asked to be left alone": (
        {"rate": Rate(2, 10.0)},
        lambda driver, f: driver.fail(driver.call(f, "a"), wait=500.0, overloaded=True),
        500.0,
    ),
    "a limit that was found": (
        {"rate": Rate(40, 1.0), "adapting": Adapting(2, 40, 0.3, None)},
        lambda driver, f: driver.fail(driver.call(f, "a"), overloaded=True),
        MEMORY,
    ),
    "a limit that was found, and starts that count for longer": (
        {"rate": Rate(40, 2 * MEMORY), "adapting": Adapting(2, 40, 0.3, None)},
        lambda driver, f: driver.ok(driver.call(f, "a")),
        2 * MEMORY,
    ),
    "no try": ({"rate": Rate(40, 1.0), "adapting": Adapting(2, 40, 0.3, None)}, never_tried, 0.0),
    "a refused call": ({"breaking": Breaking(1, 5.0)}, refused, 5.0 + MEMORY),
    "a reset": ({"rate": Rate(5, 10.0)}, reset, 0.0),
}


def test_a_key_is_remembered_exactly_as_long_as_its_past_counts() -> None:
    """Terms of the function, what is done, and for how long the key is remembered after that."""
    found = {}
    for what, (options, use, remembered) in PAST.items():
        driver = Driver()
        f = driver.function(keyed=True, **options)
        use(driver, f)
        driver.wait(max(0.0, remembered - 0.1))
        before = keys(driver, f)
        driver.wait(0.1 if remembered else 0.0)
        if before != ({"a"} if remembered else set()) or keys(driver, f):
            found[what] = before, keys(driver, f)
    assert not found


def test_a_key_that_waits_or_has_a_try_under_way_is_in_use_even_if_it_was_withdrawn() -> None:
    driver = Driver()
    f = driver.function(most=1, keyed=True)
    busy = driver.call(f, "busy")
    waits = driver.call(f, "waits")
    (attempt,) = driver.tries(busy)
    driver.withdraw(busy)
    driver.wait(1e4)
    assert keys(driver, f) == {"busy", "waits"}
    driver.ok(attempt)
    driver.ok(waits)
    assert keys(driver, f) == set()
    paced = driver.function("g", keyed=True, rate=Rate(2, 10.0))
    driver.ok(driver.call(paced, "a"))
    driver.wait(1.0)
    again = driver.call(paced, "a")
    driver.wait(11.0)
    assert keys(driver, paced) == {"a"}, "it was unused for a while, and is in use now"
    driver.ok(again)


def test_an_open_breaker_is_not_forgotten_though_the_try_that_opened_it_took_long() -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(1, 30.0), keyed=True)
    driver.fail(driver.call(f, "a"), after=1000.0)
    driver.wait(29.0)
    assert keys(driver, f) == {"a"}
    assert isinstance(driver.outcome(driver.call(f, "a")), CircuitOpen)
    driver.wait(1.0 + MEMORY - 0.1)
    probe = driver.call(f, "a")
    assert driver.begun(probe)
    assert isinstance(driver.outcome(driver.call(f, "a")), CircuitOpen), "one call finds out"
    driver.ok(probe)
    driver.wait(0.1)
    assert keys(driver, f) == set()


def test_few_are_forgotten_at_a_time_and_all_of_them_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = 32  # the driver looks at all keys after each input
    monkeypatch.setattr("qreward.scheduler.functions.FORGETS", at_once)
    driver = Driver()
    f = driver.function(rate=Rate(1, 10.0), keyed=True)
    for key in range(3 * at_once):
        driver.ok(driver.call(f, key))
    driver.wait(20.0)
    driver.ok(driver.call(f, 0))
    assert len(f.keys) in {2 * at_once, 2 * at_once + 1}
    for _ in range(3):
        driver.wait(20.0)
        driver.ok(driver.call(f, 0))
    assert len(f.keys) == 1


def test_ten_thousand_keys_leave_nothing_and_forgetting_them_keeps_no_call_waiting() -> None:
    options = FunctionOptions(retries=1, rate=Rate(2, 5.0), breaking=Breaking(2, 1.0), timeout=2.0, most=100, keyed=True).settings()
    scheduler, rng, now = CallScheduler(Random(0)), Random(1), 0.0
    f = Function("f", options)
    scheduler.add(f)
    most = 0
    for number in range(10_000):
        now += 0.01
        call = Call(f, number, options, None)
        before = len(f.keys)
        scheduler.submit(now, call)
        assert len(f.keys) > before - FORGETS
        if rng.random() < 0.05:
            scheduler.withdraw(now, [call])
        for command in [command for command in scheduler.out if command[0] == SEND]:
            failed = rng.random() < 0.02
            scheduler.event(now + 0.001, command[1], CallFailure(ValueError(), again=False) if failed else Answer(1))
        scheduler.out.clear()
        scheduler.tick(now)
        most = max(most, len(f.keys))
    assert most <= 1000, "at most twice as many as come in a window"
    for _ in range(len(f.keys)):
        f.forget(now + 100.0)
    assert not f.keys
    assert len(scheduler._timers) == 0
    assert len(scheduler.ready._heap) < 100
    assert len(scheduler._timers._heap) < 100
