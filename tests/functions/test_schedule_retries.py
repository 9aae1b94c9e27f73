"""``retry_*``, ``exception_types``, ``timeout`` and ``default_result`` as calls see them, for both kinds of functions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx
import pytest
from schedule_runs import KINDS, SLACK, at_times, kind_name

from qreward.functions.config import UNSET
from qreward.functions.function import no_waiting

pytestmark = pytest.mark.parametrize("kind", KINDS, ids=kind_name)


def fails(times: int, seconds: float = 1.0, error: BaseException | None = None) -> Any:
    """Fails so often, then returns the number of its try."""

    def behave(number: int, *_: Any) -> tuple[float, Any]:
        return seconds, (error or ConnectionError(f"try {number}")) if number < times else number

    return behave


def test_a_call_is_tried_until_it_returns_or_its_retries_are_used_up(kind: Any) -> None:
    outcome = kind.run(fails(2), at_times([0]), retry_times=2, retry_interval=0)
    assert outcome.values == [2]
    outcome = kind.run(fails(3), at_times([0]), retry_times=2, retry_interval=0)
    assert (outcome.errors, len(outcome.starts)) == (["ConnectionError"], 3)
    assert str(outcome.calls[0].error) == "try 2", "the last one is raised, as it was"


def test_without_retries_a_failure_is_raised_at_once_and_unchanged(kind: Any) -> None:
    error = ValueError("mine")
    outcome = kind.run(fails(1, error=error), at_times([0]))
    assert outcome.calls[0].error is error
    assert outcome.calls[0].at == pytest.approx(1.0, abs=1e-6)
    assert error.__cause__ is None


def test_waits_double_and_are_drawn_below_their_bounds(kind: Any) -> None:
    drawn: list[list[float]] = [[], [], [], []]
    for _ in range(40):
        outcome = kind.run(fails(4, 0.0), at_times([0]), retry_times=4, retry_interval=1.0, retry_max_interval=3.0)
        for place, (one, other) in enumerate(pairwise(outcome.times)):
            drawn[place].append(other - one)
    for waits, bound in zip(drawn, (1.0, 2.0, 3.0, 3.0), strict=True):
        assert max(waits) <= bound + SLACK
        assert bound / 2 < max(waits), "full jitter: somewhere in the upper half in one of forty"
        assert min(waits) < bound / 2


def test_what_is_not_one_of_the_exception_types_is_raised_at_once(kind: Any) -> None:
    outcome = kind.run(fails(5, error=KeyError("x")), at_times([0]), retry_times=5, exception_types=(ConnectionError, TimeoutError))
    assert (outcome.errors, len(outcome.starts)) == (["KeyError"], 1)


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


def test_retry_after_is_obeyed_and_others_of_the_key_wait_too(kind: Any) -> None:
    request = httpx.Request("POST", "http://judge.example")
    reply = httpx.Response(429, headers={"retry-after": "7"}, request=request)

    def behave(number: int, *_: Any) -> tuple[float, Any]:
        return 0.0, httpx.HTTPStatusError("too many", request=request, response=reply) if number == 0 else number

    outcome = kind.run(behave, at_times([0, 1, 2]), retry_times=1, retry_interval=0.001)
    assert outcome.errors == ["-", "-", "-"]
    assert min(outcome.times[1:]) == pytest.approx(7.0, abs=SLACK)
    assert outcome.stats.overloaded == 1


def test_the_timeout_is_one_for_the_whole_call(kind: Any) -> None:
    outcome = kind.run(lambda *_: (4.0, ConnectionError()), at_times([0]), retry_times=99, retry_interval=0, timeout=10)
    assert outcome.errors == ["RequestTimeout"]
    assert outcome.calls[0].at == pytest.approx(10.0, abs=SLACK)
    assert len(outcome.starts) == 3
    assert isinstance(outcome.calls[0].error, TimeoutError)
    assert isinstance(outcome.calls[0].error.__cause__, ConnectionError), "what happened last is not lost"
    assert outcome.cancelled == ([2] if kind.cancels else [])


def test_the_timeout_counts_waiting(kind: Any) -> None:
    outcome = kind.run(lambda *_: (1.0, "done"), at_times([0, 0, 0]), max_concurrency=1, timeout=2.5)
    assert sorted(outcome.errors) == ["-", "-", "RequestTimeout"]
    assert max(end.at for end in outcome.calls) == pytest.approx(2.5, abs=SLACK)
    assert len(outcome.starts) <= 3


def test_a_call_that_timed_out_holds_its_place_until_it_has_really_ended(kind: Any) -> None:
    outcome = kind.run(lambda number, *_: (9.0 if number == 0 else 1.0, number), [(0,), (3,)], max_concurrency=1, timeout=2)
    if kind.cancels:
        assert outcome.errors == ["RequestTimeout", "-"]
    else:
        assert outcome.errors == ["RequestTimeout", "RequestTimeout"], "a thread cannot be stopped"
    assert outcome.most == 1


def test_a_default_is_returned_instead_of_an_exception(kind: Any) -> None:
    table: list[tuple[Any, Any]] = [(7, 7), (None, None), (lambda answer, weight: (answer, weight), ("a", 2)), (0.0, 0.0)]
    for default, value in table:
        run = kind.run(fails(9), [(0, "a", 2)], retry_times=1, retry_interval=0, default_result=default)
        assert (run.values, run.errors, len(run.starts)) == ([value], ["-"], 2)
        assert run.stats.failed == 1, "it is not counted as a success"


def test_a_default_stands_for_time_limits_and_open_circuits_but_not_for_other_exceptions(kind: Any) -> None:
    outcome = kind.run(lambda *_: (5.0, 1), at_times([0]), timeout=1, default_result="late")
    assert outcome.values == ["late"]
    outcome = kind.run(fails(9), at_times([0, 5]), circuit_breaker_threshold=1, default_result="away")
    assert (outcome.values, len(outcome.starts)) == (["away", "away"], 1)
    outcome = kind.run(fails(9, error=KeyError("x")), at_times([0]), exception_types=ConnectionError, default_result=1)
    assert outcome.errors == ["KeyError"]


def test_a_function_of_exceptions_is_called_once_for_each_exception(kind: Any) -> None:
    table: list[tuple[Any, list[bool], str]] = [
        (1, [True, True], "-"),
        (1, [True, False], "ConnectionError"),
        (UNSET, [True, True], "ConnectionError"),
    ]
    for default, answers, error in table:
        asked: list[BaseException] = []

        def covers(error: BaseException, asked: list[BaseException] = asked, answers: list[bool] = answers) -> bool:
            asked.append(error)
            return answers[len(asked) - 1]

        outcome = kind.run(fails(9), at_times([0]), retry_times=1, retry_interval=0, exception_types=covers, default_result=default)
        assert (outcome.errors, len(asked)) == ([error], 2), (default, answers)


def test_exits_and_interrupts_are_never_retried_nor_replaced(kind: Any) -> None:
    class Stop(BaseException):
        pass

    outcome = kind.run(lambda *_: (1.0, Stop()), at_times([0]), retry_times=5, default_result=1)
    assert (outcome.errors, len(outcome.starts)) == (["Stop"], 1)


def test_several_tries_run_at_once_while_a_call_is_retried(kind: Any) -> None:
    def behave(number: int, *_: Any) -> tuple[float, Any]:
        return (1.0, ConnectionError()) if number < 2 else (100.0, ConnectionError()) if number < 4 else (1.0, "done")

    alone = kind.run(behave, at_times([0]), retry_times=9, retry_interval=0.1, retry_max_interval=0.1)
    parallel_tries = kind.run(behave, at_times([0]), retry_times=9, retry_interval=0.1, retry_max_interval=0.1, speed_up_max_multiply=3)
    assert alone.most == 1
    assert parallel_tries.most == 3
    assert parallel_tries.values == ["done"]
    assert parallel_tries.calls[0].at < 5
    assert alone.calls[0].at > 200


def test_no_waiting_switches_all_waits_off(kind: Any) -> None:
    with no_waiting():
        outcome = kind.run(fails(3, 0.0), at_times([0, 0]), retry_times=3, retry_interval=60, limit_size=1, limit_window=3600)
    assert outcome.errors == ["-", "-"]
    assert max(end.at for end in outcome.calls) < 2 * SLACK
