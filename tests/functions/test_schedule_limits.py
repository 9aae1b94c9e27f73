"""Limits, priorities and the circuit breaker as calls see them, for both kinds of functions. The rules are in tests/scheduler/functions."""

from __future__ import annotations

from typing import Any

import pytest
from schedule_runs import KINDS, Outcome, at_times, kind_name, most_in_any_window

from qreward import Priority

pytestmark = pytest.mark.parametrize("kind", KINDS, ids=kind_name)


def takes(seconds: float) -> Any:
    return lambda number, *_: (seconds, number)


def test_no_window_holds_more_starts_than_the_limit_and_none_is_wasted(kind: Any) -> None:
    outcome = kind.run(takes(0.01), at_times([0.3 * n % 2 for n in range(23)]), limit_size=5, limit_window=3.0)
    assert most_in_any_window(outcome.times, 3.0) == 5
    for place, time in enumerate(outcome.times[5:]):
        assert time == pytest.approx(outcome.times[place] + 3.0, abs=1e-3), "as soon as the fifth before it has left the window"


@pytest.mark.parametrize("scarce", [{"max_concurrency": 1}, {"limit_size": 1, "limit_window": 1.0}], ids=["concurrency", "rate"])
def test_waiting_calls_go_by_priority_and_not_by_arrival(kind: Any, scarce: dict[str, Any]) -> None:
    order: list[str] = []

    def behave(_number: int, name: str) -> tuple[float, Any]:
        order.append(name)
        return 1.0, name

    def urgent(function: Any) -> None:
        function.config.update(priority=Priority.HIGH)

    calls = [(0, "first"), (0.1, "low"), (0.2, "low"), (0.4, "high"), (0.5, "high")]
    kind.run(behave, calls, [(0.3, urgent)], priority=Priority.LOW, **scarce)
    assert order == ["first", "high", "high", "low", "low"]


def test_the_breaker_opens_at_its_threshold_and_one_call_finds_out(kind: Any) -> None:
    def behave(number: int, *_: Any) -> tuple[float, Any]:
        return 0.1, number if number >= 4 else ConnectionError()

    calls = at_times([0, 1, 2, 3, 4, 5, 23, 24, 44, 44.05, 45])
    outcome = kind.run(behave, calls, circuit_breaker_threshold=3, circuit_breaker_recovery=20)
    assert outcome.errors == ["ConnectionError"] * 3 + ["CircuitOpen"] * 3 + ["ConnectionError", "CircuitOpen", "-", "CircuitOpen", "-"]
    assert [round(time, 3) for time in outcome.times] == [0, 1, 2, 23, 44, 45]


def test_each_key_has_its_own_breaker(kind: Any) -> None:
    outcome = kind.run(
        lambda _, key: (0.0, key if key == "b" else ConnectionError()),
        [(n, key) for n in range(4) for key in "ab"],
        circuit_breaker_threshold=2,
        key_func=lambda key: key,
    )
    assert outcome.errors == ["ConnectionError", "-", "ConnectionError", "-", "CircuitOpen", "-", "CircuitOpen", "-"]
    assert outcome.stats.open_circuits == 1


def test_calls_that_wait_when_the_breaker_opens_fail_at_once(kind: Any) -> None:
    outcome = kind.run(lambda *_: (1.0, ConnectionError()), at_times([0] * 5), max_concurrency=1, circuit_breaker_threshold=2)
    assert sorted(outcome.errors) == ["CircuitOpen"] * 3 + ["ConnectionError"] * 2
    assert max(end.at for end in outcome.calls) == pytest.approx(2.0, abs=1e-3)


def _adapted(kind: Any, behave: Any, calls: int, **settings: Any) -> Outcome:
    outcome: Outcome = kind.run(behave, at_times([0.001 * n for n in range(calls)]), adaptive_limit=True, **settings)
    return outcome


def test_the_adaptive_limit_of_a_rate_falls_when_too_much_fails(kind: Any) -> None:
    bounds = {"adaptive_limit_min": 2, "adaptive_limit_max": 50}
    failing = _adapted(kind, lambda *_: (0.0, ConnectionError()), 60, limit_size=20, limit_window=1.0, **bounds)
    assert failing.stats.rate == 2
    assert most_in_any_window(failing.times[-10:], 1.0) == 2, "what it has come to is what holds"
    half = _adapted(
        kind,
        lambda number, *_: (0.0, number if number % 2 else ConnectionError()),
        60,
        limit_size=20,
        limit_window=1.0,
        adaptive_error_threshold=0.9,
        **bounds,
    )
    assert half.stats.rate == 20, "not too much"
    back = _adapted(
        kind, lambda number, *_: (0.0, number if number > 40 else ConnectionError()), 400, limit_size=20, limit_window=1.0, **bounds
    )
    assert back.stats.rate == 20, "it rises again, but what was set is never exceeded"


def test_the_adaptive_limit_of_concurrency_falls_when_tries_take_too_long_and_rises_when_it_is_used(kind: Any) -> None:
    bounds = {"adaptive_limit_min": 3, "adaptive_limit_max": 40, "adaptive_latency_threshold": 1.0}
    slow = _adapted(kind, takes(2.0), 120, **bounds)
    assert slow.stats.limit == 3
    quick = _adapted(kind, takes(0.2), 300, **bounds)
    assert quick.stats.limit == 40


def test_settings_that_change_hold_at_once_for_what_waits(kind: Any) -> None:
    outcome = kind.run(
        takes(1.0), at_times([0] * 9), [(0.5, lambda function: function.config.update(max_concurrency=8))], max_concurrency=1
    )
    assert sorted(round(time, 2) for time in outcome.times) == [0, *[0.5] * 7, 1.0]
    outcome = kind.run(
        takes(0.0), at_times([0] * 4), [(5, lambda function: function.config.update(limit_size=None))], limit_size=1, limit_window=60
    )
    assert sorted(round(time, 2) for time in outcome.times) == [0, 5, 5, 5]


def test_a_reset_closes_breakers_and_forgets_what_was_counted(kind: Any) -> None:
    outcome = kind.run(
        lambda n, *_: (0.0, n or ConnectionError()), at_times([0, 1, 3]), [(2, lambda f: f.reset())], circuit_breaker_threshold=1
    )
    assert outcome.errors == ["ConnectionError", "CircuitOpen", "-"]
    assert (outcome.stats.calls, outcome.stats.failed, outcome.stats.open_circuits) == (1, 0, 0)


def test_keys_are_forgotten_when_nothing_need_be_known_of_them(kind: Any) -> None:
    calls = [(0.01 * n, n) for n in range(300)]
    outcome = kind.run(takes(0.0), [*calls, (10.0, -1)], limit_size=2, limit_window=1.0, key_func=lambda key: key)
    assert outcome.stats.keys == 1
    assert outcome.stats.calls == 301
