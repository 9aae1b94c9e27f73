"""The breaker of a key, as callers meet it."""

from __future__ import annotations

from math import inf
from typing import Any

from calls_driver import AT_ONCE, Breaking, Driver, Pause, Rate
from shared_tools import each

from qreward.errors import CircuitOpen, RequestTimeout
from qreward.scheduler.functions import Function


def state(function: Function, key: object = None) -> str:
    found = function.keys[key]
    return "closed" if found.opened_at == -inf else "open" if found.probe is None else "half-open"


def opened(threshold: int = 1, recovery: float = 10.0, **options: Any) -> tuple[Driver, Function]:
    """A breaker that has just opened."""
    driver = Driver()
    f = driver.function(breaking=Breaking(threshold, recovery), **options)
    for _ in range(threshold):
        driver.fail(driver.call(f, timeout=None, retries=0))
    assert state(f) == "open"
    return driver, f


def refused(driver: Driver, call: object) -> bool:
    return isinstance(driver.watch.finished.get(call), CircuitOpen)  # type: ignore[call-overload]


def test_it_opens_at_its_threshold_and_refuses_calls_of_its_key_at_once() -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(3, 10.0), keyed=True)
    for _ in range(3):
        call = driver.call(f, "a")
        assert not refused(driver, call)
        driver.fail(call)
    late = driver.call(f, "a")
    assert refused(driver, late)
    assert not driver.begun(late)
    assert "for the key 'a' failed 3 times in a row" in str(driver.outcome(late))
    assert "tried again in 10 s" in str(driver.outcome(late))
    assert f.counters.refused == 1
    assert driver.begun(driver.call(f, "b")), "each key has its own"


def test_an_error_does_not_show_a_key_that_may_be_an_api_key() -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(1, 10.0), keyed=True)
    for key in ("sk-live-7f3a", ("alice", "sk-live-7f3a")):
        driver.fail(driver.call(f, key))
        error = str(driver.outcome(driver.call(f, key)))
        assert "for one of its keys failed 1 times" in error
        assert "7f3a" not in error


@each("opens", ["a failure", "a failure after the call was withdrawn", "a timeout"])
@each("options", [{"most": 1}, {"rate": Rate(1, 5.0)}])
def test_calls_that_wait_are_refused_when_it_opens(opens: str, options: dict[str, Any]) -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(1, 10.0), **options)
    first = driver.call(f, timeout=1.0 if opens == "a timeout" else None)
    waits = driver.call(f)
    (attempt,) = driver.tries(first)
    if opens == "a failure after the call was withdrawn":
        driver.withdraw(first)
    if opens == "a timeout":
        driver.wait(1.0)
    else:
        driver.fail(attempt, after=1.0)
    assert refused(driver, waits)
    assert driver.watch.finished_at[waits] == 1.0


def test_what_is_no_failure_of_the_function_does_not_count() -> None:
    """Overload, errors of the caller, calls that run out of time before they are tried; and successes start the count anew."""
    for how in ({"overloaded": True}, {"again": False}, {"overloaded": True, "again": False}):
        driver = Driver()
        f = driver.function(breaking=Breaking(1, 10.0))
        driver.fail(driver.call(f), **how)
        assert state(f) == "closed", how
    driver = Driver()
    f = driver.function(breaking=Breaking(1, 10.0), timeout=1.0, most=1)
    busy = driver.call(f, timeout=None)
    waits = driver.call(f)
    driver.wait(2.0)
    assert isinstance(driver.outcome(waits), RequestTimeout)
    assert state(f) == "closed"
    driver.ok(busy)
    driver.change(f, breaking=Breaking(2, 10.0))
    for _ in range(5):
        driver.fail(driver.call(f))
        driver.ok(driver.call(f))
    assert state(f) == "closed"


def test_tries_of_one_call_count_each_and_the_call_ends_with_its_own_error_when_it_opens() -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(2, 10.0), retries=9, pause=AT_ONCE)
    call = driver.call(f)
    driver.fail(call)
    error = driver.fail(call)
    assert driver.outcome(call) is error
    assert len(driver.begun(call)) == 2
    assert not f.counters.refused


def test_a_call_waits_for_a_retry_only_if_it_is_due_after_recovery_and_that_one_finds_out() -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(2, 60.0), retries=1, pause=Pause(5.0, 5.0))
    planned, other = driver.calls(2, f)
    error = driver.fail(planned)
    driver.fail(other)
    driver.wait(6.0)
    assert driver.outcome(planned) is error, "its retry was planned before it opened"
    assert len(driver.begun(planned)) == 1
    for recovery, tries in ((10.0, 1), (4.0, 2)):
        driver = Driver()
        f = driver.function(breaking=Breaking(1, recovery), retries=1, pause=Pause(5.0, 5.0))
        call = driver.call(f)
        error = driver.fail(call)
        assert driver.outcome(call) is (error if tries == 1 else None)
        driver.wait(6.0)
        assert len(driver.begun(call)) == tries
    driver.ok(call)
    assert state(f) == "closed"


def test_a_call_that_runs_out_of_time_under_way_counts_once_whatever_its_try_ends_with() -> None:
    """A thread cannot be stopped, and so answers or fails in the end."""
    for late in ("ok", "fail"):
        driver = Driver()
        f = driver.function(breaking=Breaking(3, 10.0), timeout=1.0)
        states = []
        for _ in range(3):
            call = driver.call(f)
            (attempt,) = driver.tries(call)
            driver.wait(2.0)
            assert isinstance(driver.outcome(call), RequestTimeout)
            getattr(driver, late)(attempt)
            states.append(state(f))
        assert states == ["closed", "closed", "open"], late


def test_after_recovery_exactly_one_call_finds_out() -> None:
    driver, f = opened(threshold=2)
    driver.wait(10.0)
    calls = driver.calls(5, f)
    assert [bool(driver.begun(call)) for call in calls] == [True, False, False, False, False]
    assert all(refused(driver, call) for call in calls[1:])
    assert "one call is testing it now" in str(driver.outcome(calls[1]))
    driver.ok(calls[0])
    assert state(f) == "closed"
    driver.fail(driver.call(f))
    assert state(f) == "closed", "it counts anew"
    assert all(driver.begun(call) for call in driver.calls(5, f))


def test_if_that_fails_or_runs_out_of_time_it_is_open_again() -> None:
    for fails in (True, False):
        driver, f = opened(threshold=3, timeout=1.0)
        driver.wait(10.0)
        probe = driver.call(f)
        if fails:
            driver.fail(probe, after=1.0)
        else:
            driver.wait(1.0)
        driver.wait(9.9)
        assert refused(driver, driver.call(f))
        driver.wait(0.1)
        assert driver.begun(driver.call(f))


@each("end", ["withdrawn", "final error", "turned away", "cancelled from outside", "out of time, waiting"])
def test_if_that_ends_without_finding_out_the_next_call_does(end: str) -> None:
    driver, f = opened()
    g = driver.function("g", most=1)
    driver.wait(10.0)
    if end == "out of time, waiting":
        busy = driver.call(g)
        driver.call(f, timeout=1.0)
        driver.wait(2.0)
        driver.ok(busy)
    else:
        probe = driver.call(f)
        (attempt,) = driver.tries(probe)
        if end == "withdrawn":
            driver.withdraw(probe)
        driver.stopped(attempt) if end in ("withdrawn", "cancelled from outside") else driver.fail(
            attempt, again=end != "final error", overloaded=end == "turned away"
        )
    assert state(f) == "open"
    assert driver.begun(driver.call(f))
    assert state(f) == "half-open"


def test_one_that_finds_out_may_be_tried_again_when_it_was_turned_away() -> None:
    driver, f = opened()
    driver.wait(10.0)
    probe = driver.call(f, retries=2, pause=Pause(1.0, 1.0))
    driver.fail(probe, overloaded=True)
    assert refused(driver, driver.call(f))
    driver.wait(1.1)
    driver.ok(probe)
    assert state(f) == "closed"


def test_what_began_before_it_opened_decides_nothing() -> None:
    driver = Driver()
    f = driver.function(breaking=Breaking(1, 10.0))
    slow, slower, bad = driver.calls(3, f)
    driver.fail(bad)
    driver.ok(slow)
    assert driver.is_ok(slow)
    assert state(f) == "open"
    driver.wait(10.0)
    probe = driver.call(f)
    driver.fail(slower)
    assert state(f) == "half-open"
    driver.ok(probe)
    assert state(f) == "closed"
