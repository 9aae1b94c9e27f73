"""Calls of scheduled functions, blocking and async. The rules of limits, hedges and retries are in tests/scheduler/functions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import accumulate
from random import Random
from statistics import fmean
from typing import Any

import httpx
import pytest
from schedule_runs import KINDS, SLACK, at_times, kind_name

from qreward import schedule
from qreward.functions.function import no_waiting
from qreward.testing import run_in_virtual_time

both = pytest.mark.parametrize("kind", KINDS, ids=kind_name)


def fails(times: int, seconds: float = 1.0, error: BaseException | None = None) -> Any:
    """Fails so often, then returns the number of its try."""

    def behave(number: int, *_: Any) -> tuple[float, Any]:
        return seconds, (error or ConnectionError(f"try {number}")) if number < times else number

    return behave


@both
def test_a_call_is_tried_until_it_returns_or_its_retries_are_used_up_and_only_for_the_exceptions_named(kind: Any) -> None:
    outcome = kind.run(fails(2), at_times([0]), retry_times=2, retry_interval=0)
    assert outcome.values == [2]
    outcome = kind.run(fails(3), at_times([0]), retry_times=2, retry_interval=0)
    assert (outcome.errors, len(outcome.starts)) == (["ConnectionError"], 3)
    assert str(outcome.calls[0].error) == "try 2", "the last one is raised, as it was"
    error = KeyError("mine")
    outcome = kind.run(fails(5, error=error), at_times([0]), retry_times=5, exception_types=(ConnectionError, TimeoutError))
    assert (outcome.calls[0].error, len(outcome.starts), error.__cause__) == (error, 1, None)
    assert outcome.calls[0].at == pytest.approx(1.0, abs=1e-6)


@both
def test_a_function_of_the_exception_says_whether_it_is_retried_and_after_how_long(kind: Any) -> None:
    said = {0: True, 1: 2.5, 2: False}
    outcome = kind.run(
        lambda number, *_: (0.0, ConnectionError(number)),
        at_times([0]),
        retry_times=9,
        retry_interval=0,
        exception_types=lambda error: said[error.args[0]],
    )
    assert len(outcome.starts) == 3
    assert outcome.times[2] - outcome.times[1] == pytest.approx(2.5, abs=SLACK)


class Full(Exception):
    status_code, retry_after = 429, 5


def waits_at_a_full_server(calls: int, most: int | None) -> list[float]:
    """The seconds of the calls that succeed at a server that has room for four, is loaded by 60 %, and asks the others to wait for 5 s."""
    rng, busy, waits = Random(1), 0, list[float]()
    seconds = [0.5 * rng.lognormvariate(-0.32, 0.8) for _ in range(calls)]
    starts = list(accumulate(rng.expovariate(4.8) for _ in range(calls)))

    @schedule(retry_times=3, max_concurrency=most)
    async def judge(number: int) -> int:
        nonlocal busy
        if busy >= 4:
            raise Full
        busy += 1
        await asyncio.sleep(seconds[number])
        busy -= 1
        return number

    async def call(number: int) -> None:
        await asyncio.sleep(starts[number])
        with suppress(Full):
            assert await judge(number) == number
            waits.append(asyncio.get_running_loop().time() - starts[number])

    async def main() -> None:
        await asyncio.gather(*map(call, range(calls)))

    run_in_virtual_time(main())
    return waits


def test_a_server_without_room_for_some_is_used_by_others_while_it_asks_for_a_wait() -> None:
    for most in (None, 6):
        waits = waits_at_a_full_server(400, most)
        assert len(waits) >= 388, most
        assert fmean(waits) < 1.5, most


@both
def test_retry_after_is_obeyed_and_others_of_the_key_wait_too(kind: Any) -> None:
    request = httpx.Request("POST", "http://judge.example")
    reply = httpx.Response(429, headers={"retry-after": "7"}, request=request)

    def behave(number: int, *_: Any) -> tuple[float, Any]:
        return 0.0, httpx.HTTPStatusError("too many", request=request, response=reply) if number == 0 else number

    outcome = kind.run(behave, at_times([0, 1, 2]), retry_times=1, retry_interval=0.001)
    assert outcome.errors == ["-", "-", "-"]
    assert min(outcome.times[1:]) == pytest.approx(7.0, abs=SLACK)
    assert outcome.stats.overloaded == 1
    reply.headers["x-should-retry"] = "false"
    outcome = kind.run(behave, at_times([0]), retry_times=1)
    assert (outcome.errors, len(outcome.starts)) == (["HTTPStatusError"], 1), "the server does not want another try"


@both
def test_the_timeout_is_one_for_the_whole_call(kind: Any) -> None:
    outcome = kind.run(lambda *_: (4.0, ConnectionError()), at_times([0]), retry_times=99, retry_interval=0, timeout=10)
    assert outcome.errors == ["RequestTimeout"]
    assert outcome.calls[0].at == pytest.approx(10.0, abs=SLACK)
    assert len(outcome.starts) == 3
    assert isinstance(outcome.calls[0].error, TimeoutError)
    assert isinstance(outcome.calls[0].error.__cause__, ConnectionError), "what happened last is not lost"
    assert outcome.cancelled == ([2] if kind.cancels else [])


@both
def test_a_call_that_timed_out_holds_its_place_until_it_has_really_ended(kind: Any) -> None:
    outcome = kind.run(lambda number, *_: (9.0 if number == 0 else 1.0, number), [(0,), (3,)], max_concurrency=1, timeout=2)
    if kind.cancels:
        assert outcome.errors == ["RequestTimeout", "-"]
    else:
        assert outcome.errors == ["RequestTimeout", "RequestTimeout"], "a thread cannot be stopped"
    assert outcome.most == 1


@both
def test_a_default_is_returned_instead_of_an_exception(kind: Any) -> None:
    table: list[tuple[Any, Any]] = [(7, 7), (None, None), (lambda answer, weight: (answer, weight), ("a", 2)), (0.0, 0.0)]
    for default, value in table:
        run = kind.run(fails(9), [(0, "a", 2)], retry_times=1, retry_interval=0, default_result=default)
        assert (run.values, run.errors, len(run.starts)) == ([value], ["-"], 2)
        assert run.stats.failed == 1, "it is not counted as a success"


@both
def test_a_default_stands_for_time_limits_and_open_circuits_but_not_for_other_exceptions(kind: Any) -> None:
    outcome = kind.run(lambda *_: (5.0, 1), at_times([0]), timeout=1, default_result="late")
    assert outcome.values == ["late"]
    outcome = kind.run(fails(9), at_times([0, 5]), circuit_breaker_threshold=1, default_result="away")
    assert (outcome.values, len(outcome.starts)) == (["away", "away"], 1)
    outcome = kind.run(fails(9, error=KeyError("x")), at_times([0]), exception_types=ConnectionError, default_result=1)
    assert outcome.errors == ["KeyError"]


@both
def test_exits_and_interrupts_are_never_retried_nor_replaced(kind: Any) -> None:
    class Stop(BaseException):
        pass

    outcome = kind.run(lambda *_: (1.0, Stop()), at_times([0]), retry_times=5, default_result=1)
    assert (outcome.errors, len(outcome.starts)) == (["Stop"], 1)


@both
def test_no_waiting_switches_all_waits_off(kind: Any) -> None:
    with no_waiting():
        outcome = kind.run(fails(3, 0.0), at_times([0, 0]), retry_times=3, retry_interval=60, limit_size=1, limit_window=3600)
    assert outcome.errors == ["-", "-"]
    assert max(end.at for end in outcome.calls) < 2 * SLACK


@both
def test_the_first_result_counts_and_the_other_try_is_cancelled_or_dropped(kind: Any) -> None:
    outcome = kind.run(lambda number, *_: (100.0 if number == 0 else 1.0, number), at_times([0]), hedged_request_time=0.5)
    assert outcome.values == [1]
    assert outcome.calls[0].at == pytest.approx(1.5, abs=SLACK), "the loser delays nobody"
    assert outcome.cancelled == ([0] if kind.cancels else [])
    assert (outcome.stats.hedges, outcome.stats.hedges_won) == (1, 1)


@both
def test_settings_that_change_hold_at_once_for_what_waits(kind: Any) -> None:
    events = [(0.5, lambda function: function.config.update(max_concurrency=8))]
    outcome = kind.run(lambda number, *_: (1.0, number), at_times([0] * 9), events, max_concurrency=1)
    assert sorted(round(time, 2) for time in outcome.times) == [0, *[0.5] * 7, 1.0]


@both
def test_a_reset_closes_breakers_and_forgets_what_was_counted(kind: Any) -> None:
    outcome = kind.run(
        lambda n, *_: (0.0, n or ConnectionError()), at_times([0, 1, 3]), [(2, lambda f: f.reset())], circuit_breaker_threshold=1
    )
    assert outcome.errors == ["ConnectionError", "CircuitOpen", "-"]
    assert (outcome.stats.calls, outcome.stats.failed, outcome.stats.open_circuits) == (1, 0, 0)


@both
def test_the_first_replaced_error_of_each_kind_is_logged_without_its_message(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    errors = [ValueError("secret"), ValueError("secret"), KeyError("secret"), ValueError("secret")]
    outcome = kind.run(lambda number, *_: (1.0, errors[number]), at_times([0, 2, 4, 6]), default_result=None)
    assert [call.value for call in outcome.calls] == [None] * 4
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.split(" of ")[0] for message in said] == [
        "default_result replaced a ValueError",
        "default_result replaced a KeyError",
    ]
    assert all("schedule_runs.py:" in message and "secret" not in message for message in said), said
    caplog.clear()
    kind.run(lambda *_: (5.0, 1), at_times([0, 6]), timeout=1, default_result=0)
    assert [record.getMessage().split(" of ")[0] for record in caplog.records] == ["default_result replaced a RequestTimeout"]


def test_calls_that_ended_while_the_loop_was_held_use_up_no_hedges_of_calls_that_hang() -> None:
    def behave(number: int, kind: str) -> tuple[float, Any]:
        return (0.25 if kind == "quick" else 5.0 if number < 320 else 0.1), number

    calls = [(0.0, "quick")] * 300 + [(1.0, "hangs")] * 20
    hold = [(0.2, lambda _: asyncio.get_running_loop().let_pass(0.15))]  # type: ignore[attr-defined]
    kind: Any = KINDS[0]
    outcome = kind.run(behave, calls, hold, hedged_request_time=0.3)
    assert max(end.at for end in outcome.calls) < 1.0 + 0.3 + 0.1 + 2 * SLACK
    assert (outcome.stats.hedges, outcome.stats.tries) == (20, 340) == (20, len(outcome.starts))


@both
def test_a_function_of_the_exception_that_raises_ends_the_call_with_what_it_raised(kind: Any) -> None:
    def retried(error: Exception) -> bool:
        raise KeyError("mine")

    for settings in ({}, {"timeout": 60.0}):
        outcome = kind.run(fails(9), at_times([0]), retry_times=5, exception_types=retried, **settings)
        assert (outcome.errors, len(outcome.starts)) == (["KeyError"], 1), settings
        assert isinstance(outcome.calls[0].error.__context__, ConnectionError)
