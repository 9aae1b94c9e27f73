"""The breaker of a key, as callers meet it."""

from __future__ import annotations

from typing import Any

import pytest
from calls_desk import AT_ONCE, Breaking, Desk, Pause, Rate

from qreward.errors import CircuitOpen, RequestTimeout
from qreward.scheduler.functions.state import Function


def state(function: Function, key: object = None) -> str:
    breaker = function.keys[key].breaker
    assert breaker is not None
    return breaker.state


def opened(threshold: int = 1, recovery: float = 10.0, **terms: Any) -> tuple[Desk, Function]:
    """A breaker that has just opened."""
    desk = Desk()
    f = desk.function(breaking=Breaking(threshold, recovery), **terms)
    for _ in range(threshold):
        desk.fail(desk.call(f, timeout=None, retries=0))
    assert state(f) == "open"
    return desk, f


def refused(desk: Desk, call: object) -> bool:
    return isinstance(desk.watch.finished.get(call), CircuitOpen)  # type: ignore[call-overload]


def test_it_opens_at_its_threshold_and_refuses_at_once() -> None:
    desk = Desk()
    f = desk.function(breaking=Breaking(3, 10.0))
    for _ in range(3):
        call = desk.call(f)
        assert not refused(desk, call)
        desk.fail(call)
    late = desk.call(f)
    assert refused(desk, late)
    assert not desk.begun(late)
    assert "failed 3 times in a row" in str(desk.outcome(late))
    assert "tried again in 10 s" in str(desk.outcome(late))
    assert f.counters.refused == 1


def test_of_many_calls_at_once_only_as_many_are_tried_as_it_takes() -> None:
    desk = Desk()
    f = desk.function(breaking=Breaking(2, 10.0), most=1)
    calls = desk.calls(10, f)
    for call in calls[:2]:
        desk.fail(call)
    assert [refused(desk, call) for call in calls] == [False] * 2 + [True] * 8
    assert len(desk.watch.sends) == 2


@pytest.mark.parametrize("opens", ["a failure", "a failure after the call was withdrawn", "a timeout"])
@pytest.mark.parametrize("terms", [{"most": 1}, {"rate": Rate(1, 5.0)}])
def test_calls_that_wait_are_refused_when_it_opens(opens: str, terms: dict[str, Any]) -> None:
    desk = Desk()
    f = desk.function(breaking=Breaking(1, 10.0), **terms)
    first = desk.call(f, timeout=1.0 if opens == "a timeout" else None)
    waits = desk.call(f)
    (attempt,) = desk.tries(first)
    if opens == "a failure after the call was withdrawn":
        desk.withdraw(first)
    if opens == "a timeout":
        desk.wait(1.0)
    else:
        desk.fail(attempt, after=1.0)
    assert refused(desk, waits)
    assert desk.watch.finished_at[waits] == 1.0


def test_what_is_no_failure_of_the_function_does_not_count() -> None:
    """Overload, errors of the caller, calls that run out of time before they are tried; and successes start the count anew."""
    for how in ({"overloaded": True}, {"again": False}, {"overloaded": True, "again": False}):
        desk = Desk()
        f = desk.function(breaking=Breaking(1, 10.0))
        desk.fail(desk.call(f), **how)
        assert state(f) == "closed", how
    desk = Desk()
    f = desk.function(breaking=Breaking(1, 10.0), timeout=1.0, most=1)
    busy = desk.call(f, timeout=None)
    waits = desk.call(f)
    desk.wait(2.0)
    assert isinstance(desk.outcome(waits), RequestTimeout)
    assert state(f) == "closed"
    desk.ok(busy)
    desk.change(f, breaking=Breaking(2, 10.0))
    for _ in range(5):
        desk.fail(desk.call(f))
        desk.ok(desk.call(f))
    assert state(f) == "closed"


def test_tries_of_one_call_count_each_and_the_call_ends_with_its_own_error_when_it_opens() -> None:
    desk = Desk()
    f = desk.function(breaking=Breaking(2, 10.0), retries=9, pause=AT_ONCE)
    call = desk.call(f)
    desk.fail(call)
    error = desk.fail(call)
    assert desk.outcome(call) is error
    assert len(desk.begun(call)) == 2
    assert not f.counters.refused


def test_a_call_waits_for_a_retry_only_if_it_is_due_after_recovery_and_that_one_finds_out() -> None:
    for recovery, tries in ((10.0, 1), (4.0, 2)):
        desk = Desk()
        f = desk.function(breaking=Breaking(1, recovery), retries=1, pause=Pause(5.0, 5.0))
        call = desk.call(f)
        error = desk.fail(call)
        assert desk.outcome(call) is (error if tries == 1 else None)
        desk.wait(6.0)
        assert len(desk.begun(call)) == tries
    desk.ok(call)
    assert state(f) == "closed"


def test_a_retry_that_is_due_while_it_is_open_is_not_made() -> None:
    """It was planned before."""
    desk = Desk()
    f = desk.function(breaking=Breaking(2, 60.0), retries=1, pause=Pause(5.0, 5.0))
    waits, other = desk.calls(2, f)
    error = desk.fail(waits)
    desk.fail(other)
    desk.wait(6.0)
    assert desk.outcome(waits) is error
    assert len(desk.begun(waits)) == 1


def test_a_call_that_runs_out_of_time_under_way_counts_once_whatever_its_try_ends_with() -> None:
    """A thread cannot be stopped, and so answers or fails in the end."""
    for late in ("ok", "fail"):
        desk = Desk()
        f = desk.function(breaking=Breaking(3, 10.0), timeout=1.0)
        states = []
        for _ in range(3):
            call = desk.call(f)
            (attempt,) = desk.tries(call)
            desk.wait(2.0)
            assert isinstance(desk.outcome(call), RequestTimeout)
            getattr(desk, late)(attempt)
            states.append(state(f))
        assert states == ["closed", "closed", "open"], late


def test_after_recovery_exactly_one_call_finds_out() -> None:
    desk, f = opened(threshold=2)
    desk.wait(10.0)
    calls = desk.calls(5, f)
    assert [bool(desk.begun(call)) for call in calls] == [True, False, False, False, False]
    assert all(refused(desk, call) for call in calls[1:])
    assert "one call is testing it now" in str(desk.outcome(calls[1]))
    desk.ok(calls[0])
    assert state(f) == "closed"
    desk.fail(desk.call(f))
    assert state(f) == "closed", "it counts anew"
    assert all(desk.begun(call) for call in desk.calls(5, f))


def test_if_that_fails_or_runs_out_of_time_it_is_open_again() -> None:
    for fails in (True, False):
        desk, f = opened(threshold=3, timeout=1.0)
        desk.wait(10.0)
        probe = desk.call(f)
        if fails:
            desk.fail(probe, after=1.0)
        else:
            desk.wait(1.0)
        desk.wait(9.9)
        assert refused(desk, desk.call(f))
        desk.wait(0.1)
        assert desk.begun(desk.call(f))


@pytest.mark.parametrize("end", ["withdrawn", "final error", "turned away", "cancelled from outside", "out of time, waiting"])
def test_if_that_ends_without_finding_out_the_next_call_does(end: str) -> None:
    desk, f = opened()
    g = desk.function("g", most=1)
    desk.wait(10.0)
    if end == "out of time, waiting":
        busy = desk.call(g)
        desk.call(f, timeout=1.0)
        desk.wait(2.0)
        desk.ok(busy)
    else:
        probe = desk.call(f)
        (attempt,) = desk.tries(probe)
        if end == "withdrawn":
            desk.withdraw(probe)
        desk.stopped(attempt) if end in ("withdrawn", "cancelled from outside") else desk.fail(
            attempt, again=end != "final error", overloaded=end == "turned away"
        )
    assert state(f) == "open"
    assert desk.begun(desk.call(f))
    assert state(f) == "half-open"


def test_one_that_finds_out_may_be_tried_again_when_it_was_turned_away() -> None:
    desk, f = opened()
    desk.wait(10.0)
    probe = desk.call(f, retries=2, pause=Pause(1.0, 1.0))
    desk.fail(probe, overloaded=True)
    assert refused(desk, desk.call(f))
    desk.wait(1.1)
    desk.ok(probe)
    assert state(f) == "closed"


def test_what_began_before_it_opened_decides_nothing() -> None:
    desk = Desk()
    f = desk.function(breaking=Breaking(1, 10.0))
    slow, slower, bad = desk.calls(3, f)
    desk.fail(bad)
    desk.ok(slow)
    assert desk.is_ok(slow)
    assert state(f) == "open"
    desk.wait(10.0)
    probe = desk.call(f)
    desk.fail(slower)
    assert state(f) == "half-open"
    desk.ok(probe)
    assert state(f) == "closed"


def test_each_key_has_its_own() -> None:
    desk = Desk()
    f = desk.function(breaking=Breaking(1, 10.0), keyed=True)
    desk.fail(desk.call(f, "a"))
    assert refused(desk, desk.call(f, "a"))
    assert "for the key 'a'" in str(next(error for error in desk.watch.finished.values() if isinstance(error, CircuitOpen)))
    assert desk.begun(desk.call(f, "b"))
