"""What was promised by QReward 0.1.7 and not kept, row by row: here it is kept. (What its client promised is tested with the client.)"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import Any

import httpx
import pytest
from schedule_stage import SLACK, STAGES, Async, at_times, most_in_any_window, stage_name

import qreward
from qreward import ConfigWatcher, Priority, schedule

both = pytest.mark.parametrize("stage", STAGES, ids=stage_name)


@both
def test_circuit_breaker_threshold_two_and_ten_raising_calls_reach_the_backend_twice(stage: Any) -> None:
    told = stage.play(lambda *_: (0.0, ConnectionError()), at_times(range(10)), circuit_breaker_threshold=2)
    assert len(told.starts) == 2
    assert told.errors == ["ConnectionError"] * 2 + ["CircuitOpen"] * 8


@both
def test_circuit_breaker_is_one_a_key_and_half_opens(stage: Any) -> None:
    told = stage.play(
        lambda number, key: (0.0, key if key == "well" or number > 1 else ConnectionError()),
        [(0, "sick"), (1, "sick"), (2, "well"), (40, "sick")],
        circuit_breaker_threshold=1,
        key_func=lambda key: key,
    )
    assert told.errors == ["ConnectionError", "CircuitOpen", "-", "-"]


@both
def test_metrics_callback_is_called_for_failed_calls(stage: Any) -> None:
    records: list[Any] = []
    stage.play(lambda *_: (0.0, ConnectionError()), at_times([0, 1]), metrics_callback=records.append)
    assert [record.ok for record in records] == [False, False]


@both
def test_adaptive_limit_changes_what_is_allowed_after_900_failures(stage: Any) -> None:
    told = stage.play(
        lambda *_: (0.0, ConnectionError()),
        at_times([0.01 * n for n in range(900)]),
        adaptive_limit=True,
        limit_size=100,
        adaptive_limit_min=10,
    )
    assert told.stats.rate == 10
    assert most_in_any_window(told.times[-50:], 1.0) == 10


@both
def test_priority_high_submitted_last_goes_before_low_that_waits(stage: Any) -> None:
    order: list[str] = []

    def behave(_: int, name: str) -> tuple[float, Any]:
        order.append(name)
        return 1.0, name

    stage.play(
        behave,
        [(0, "low"), (0.1, "low"), (0.2, "low"), (0.4, "high")],
        [(0.3, lambda function: function.config.update(priority=Priority.HIGH))],
        priority=Priority.LOW,
        max_concurrency=1,
    )
    assert order == ["low", "high", "low", "low"]


def test_cancellation_of_the_caller_leaves_no_task_behind() -> None:
    async def test() -> None:
        @schedule(retry_times=3, hedged_request_time=0.001)
        async def score() -> None:
            await asyncio.Event().wait()

        task = asyncio.ensure_future(score())
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())


@both
def test_hedge_of_a_function_that_blocks_does_not_wait_for_the_loser(stage: Any) -> None:
    told = stage.play(lambda number, *_: (10.0 if number == 0 else 0.02, number), at_times([0]), hedged_request_time=0.1, retry_interval=1)
    assert told.calls[0].at == pytest.approx(0.12, abs=SLACK), "1.13 s before"


def test_hedge_of_a_function_that_blocks_in_real_threads() -> None:
    tries = iter(range(9))
    release = threading.Event()

    @schedule(hedged_request_time=0.02)
    def score() -> int:
        number = next(tries)
        if number == 0:
            release.wait(30)
        return number

    assert score() == 1, "while the first try is still stuck"
    assert score.stats().inflight == 1
    release.set()


@both
def test_hedges_do_not_eat_retries(stage: Any) -> None:
    told = stage.play(
        lambda number, *_: (5.0, ConnectionError()) if number < 3 else (0.1, "done"),
        at_times([0]),
        hedged_request_time=1,
        retry_times=2,
        retry_interval=0,
    )
    assert told.values == ["done"]


def test_limiter_identity_is_the_function_and_not_its_name() -> None:
    def make(size: int) -> Any:
        @schedule(limit_size=size, limit_window=1.0)
        def score() -> int:
            return size

        return score

    slow, quick = make(1), make(1000)
    slow()
    begin = time.process_time()
    assert [quick() for _ in range(100)] == [1000] * 100
    assert time.process_time() - begin < 30
    assert (slow.stats().tries, quick.stats().tries) == (1, 100)


@both
def test_pools_of_keys_are_evicted(stage: Any) -> None:
    calls = [(0.001 * n, n) for n in range(500)]
    told = stage.play(lambda *_: (0.0, 1), [*calls, (10.0, 0)], limit_size=1, limit_window=0.1, key_func=lambda key: key)
    assert told.stats.keys == 1


@both
def test_backoff_grows_and_is_jittered(stage: Any) -> None:
    told = stage.play(lambda *_: (0.0, ConnectionError()), at_times([0]), retry_times=6, retry_interval=1.0)
    waits = [other - one for one, other in pairwise(told.times)]
    assert len({round(wait, 3) for wait in waits}) > 3, "not one constant interval"


def test_hot_reload_reaches_running_functions() -> None:
    @schedule(max_concurrency=1)
    def score() -> int:
        return 1

    watcher = ConfigWatcher(score, callback=lambda: {"max_concurrency": 7})
    assert watcher.poll_once()
    assert (score.stats().limit, score.config.max_concurrency) == (7, 7)


def test_nothing_of_others_is_patched() -> None:
    program = (
        "import httpx, openai\n"
        "before = httpx.Response.json, httpx._content.encode_json, openai.resources.embeddings.AsyncEmbeddings.create\n"
        "import qreward\n"
        "[getattr(qreward, name) for name in qreward.__all__]\n"
        "qreward.schedule(timeout=5)(len)('x')\n"
        "after = httpx.Response.json, httpx._content.encode_json, openai.resources.embeddings.AsyncEmbeddings.create\n"
        "assert before == after\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_retry_after_is_used() -> None:
    request = httpx.Request("POST", "http://judge.example")
    busy = httpx.HTTPStatusError("busy", request=request, response=httpx.Response(429, headers={"retry-after": "1"}, request=request))
    told = Async().play(lambda number, *_: (0.0, number or busy), at_times([0]), retry_times=1, retry_interval=0.001)
    assert told.times == [pytest.approx(0.0, abs=1e-3), pytest.approx(1.0, abs=SLACK)]


def test_bad_requests_need_not_be_sent_again() -> None:
    request = httpx.Request("POST", "http://judge.example")
    bad = httpx.HTTPStatusError("bad", request=request, response=httpx.Response(400, request=request))
    told = Async().play(
        lambda *_: (0.0, bad), at_times([0]), retry_times=5, exception_types=lambda error: error.response.status_code >= 500
    )
    assert len(told.starts) == 1


def test_defaults_swallow_no_cancellation_and_no_exit() -> None:
    assert inspect.signature(schedule)
    assert qreward.ScheduleConfig().exception_types is Exception


@pytest.mark.parametrize("name", sorted(qreward.ScheduleConfig.model_fields))
def test_every_parameter_is_written_once(name: str) -> None:
    """In one class, and told in its docstring; the decorator and the watcher get it from there."""
    assert f"{name}:" in (qreward.ScheduleConfig.__doc__ or "")
    assert name in inspect.signature(schedule).parameters, "which help() shows all the same"
