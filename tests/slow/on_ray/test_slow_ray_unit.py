"""What ``@serve.batch`` promises, asked of Ray's decorator and of ours in the same words; without a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest

import qreward

pytestmark = [pytest.mark.timeout(120), pytest.mark.real_time(60), pytest.mark.filterwarnings("ignore")]  # what Ray warns of is not ours
LONG = 1000.0


@pytest.fixture(params=["ray", "qreward"])
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    from ray import serve

    config = SimpleNamespace(max_ongoing_requests=10_000)
    replica = SimpleNamespace(_deployment_config=config, deployment="d", replica_tag="r", app_name="a")
    monkeypatch.setattr(serve.context, "_INTERNAL_REPLICA_CONTEXT", replica)
    return serve.batch if request.param == "ray" else qreward.batch


def ends(test: Any) -> Any:
    """Ends the tasks that Ray's queues leave running."""

    @wraps(test)
    async def run(batch: Any) -> None:
        try:
            await test(batch)
        finally:
            for task in asyncio.all_tasks():
                if task.get_coro().__qualname__ == "_BatchQueue._process_batches":  # type: ignore[union-attr]
                    task.cancel()

    return run


def both(function: Any, **settings: Any) -> Callable[[Any], list[Any]]:
    """The function, and a method that calls it, as they are decorated."""

    def made(batch: Any) -> list[Any]:
        class Holder:
            @batch(**settings)
            async def method(self, *args: Any, **kwargs: Any) -> Any:
                return await function(*args, **kwargs)

        @batch(**settings)
        async def alone(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return [alone, Holder().method]

    return made


async def unfinished(*calls: Any, within: float = 0.1) -> int:
    """How many tasks are not done after some time."""
    _, pending = await asyncio.wait(calls, timeout=within)
    return len(pending)


def started(call: Any, *items: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(call(item)) for item in items]


async def echo(items: list[Any]) -> list[Any]:
    if "raise" in items:
        raise ZeroDivisionError
    return items


def test_what_is_decorated_and_with_which_settings_is_checked(batch: Any) -> None:
    def plain(items: list[Any]) -> list[Any]:
        return items

    for right in ({"max_batch_size": 1.0}, {"batch_wait_timeout_s": 0}, {"batch_wait_timeout_s": 0.0}, {"batch_size_fn": len}):
        batch(**right)(echo)
    for error, wrong in (
        (ValueError, {"max_batch_size": 0}),
        (TypeError, {"max_batch_size": 1.1}),
        (ValueError, {"batch_wait_timeout_s": -0.1}),
        (TypeError, {"batch_wait_timeout_s": "a"}),
        (TypeError, {"max_concurrent_batches": 1.5}),
        (TypeError, {"batch_size_fn": 3}),
    ):
        with pytest.raises(error):
            batch(**wrong)(echo)
    with pytest.raises(TypeError, match="async def"):
        batch(plain)


@ends
async def test_a_full_batch_waits_for_no_timer_and_one_that_is_not_full_does(batch: Any) -> None:
    for call in both(echo, max_batch_size=1, batch_wait_timeout_s=LONG)(batch):
        assert await call("hi") == "hi"
        with pytest.raises(ZeroDivisionError):
            await call("raise")
    for call in both(echo, max_batch_size=3, batch_wait_timeout_s=LONG)(batch):
        for items in (["a", "b", "c"], ["a", "raise", "c"]):
            calls = started(call, *items[:2])
            assert await unfinished(*calls) == 2
            calls += started(call, items[2])
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert found == items if "raise" not in items else {type(one) for one in found} == {ZeroDivisionError}
    for call in both(echo, max_batch_size=2, batch_wait_timeout_s=LONG)(batch):
        assert await asyncio.wait_for(asyncio.gather(*started(call, *range(10))), 5) == list(range(10))


@ends
async def test_arguments_by_position_and_by_name_are_lists_of_their_own(batch: Any) -> None:
    class Holder:
        @batch(max_batch_size=2, batch_wait_timeout_s=LONG)
        async def pair(self, key1: list[str], key2: list[str]) -> list[tuple[str, str]]:
            return list(zip(key1, key2, strict=True))

    pair = Holder().pair
    for calls in (
        [pair("a", "b"), pair("c", "d")],
        [pair(key1="a", key2="b"), pair(key1="c", key2="d")],
        [pair("a", key2="b"), pair("c", key2="d")],
        [pair(key2="b", key1="a"), pair(key2="d", key1="c")],
    ):
        assert await asyncio.gather(*calls) == [("a", "b"), ("c", "d")]


@ends
async def test_a_caller_that_is_cancelled_harms_no_other(batch: Any) -> None:
    free = asyncio.Event()

    async def held(items: list[Any]) -> list[Any]:
        await free.wait()
        return items

    for call in both(held, max_batch_size=2, batch_wait_timeout_s=LONG)(batch):
        free.clear()
        first, second = started(call, 1, 2)
        assert await unfinished(first, second) == 2
        first.cancel()
        assert await unfinished(second) == 1
        free.set()
        assert await second == 2
        assert await asyncio.gather(*started(call, 3, 4)) == [3, 4]


@ends
async def test_the_setters_count_for_the_next_batch_and_not_for_the_one_that_fills(batch: Any) -> None:
    for call in both(echo, max_batch_size=2, batch_wait_timeout_s=LONG)(batch):
        assert (call._get_max_batch_size(), call._get_batch_wait_timeout_s()) == (2, LONG)
        assert await asyncio.gather(*started(call, 1, 2)) == [1, 2]
        call.set_max_batch_size(3)
        call.set_batch_wait_timeout_s(2 * LONG)
        assert (call._get_max_batch_size(), call._get_batch_wait_timeout_s()) == (3, 2 * LONG)
        if await unfinished(*(calls := started(call, 1, 2))) == 2:  # Ray may still wait for its next item with the earlier size
            call.set_max_batch_size(1)
            call.set_batch_wait_timeout_s(0)
            assert await unfinished(*calls) == 2, "this batch fills with the earlier settings"
            calls += started(call, 3)
        assert await asyncio.wait_for(asyncio.gather(*calls), 5) == [1, 2, 3][: len(calls)]
        assert await asyncio.wait_for(call(9), 5) == 9


@ends
async def test_a_size_function_limits_batches_and_an_item_that_is_too_large_fails_alone(batch: Any) -> None:
    sizes = []

    async def note(items: list[int]) -> list[int]:
        sizes.append(sum(items))
        return items

    for call in both(note, max_batch_size=10, batch_wait_timeout_s=0.05, batch_size_fn=sum)(batch):
        assert await asyncio.gather(*started(call, 4, 5, 6, 3)) == [4, 5, 6, 3]
        assert max(sizes) <= 10
        with pytest.raises(RuntimeError, match="greater than max_batch_size"):
            await call(11)
        assert await call(10) == 10


@ends
async def test_at_most_so_many_batches_run_at_once(batch: Any) -> None:
    running = peak = 0

    async def note(items: list[int]) -> list[int]:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.02)
        running -= 1
        return items

    for call in both(note, max_batch_size=2, batch_wait_timeout_s=0.0, max_concurrent_batches=2)(batch):
        assert await asyncio.gather(*started(call, *range(12))) == list(range(12))
    assert peak == 2


@ends
async def test_streams_have_the_pieces_of_their_callers_in_order_and_end_alone(batch: Any) -> None:
    for length in (0, 2, 5):

        @batch(max_batch_size=2, batch_wait_timeout_s=LONG)
        async def pieces(items: list[str], length: int = length) -> Any:
            for number in range(length):
                yield [(number, item) for item in items]

        streams = [pieces("a"), pieces("b")]
        found = [[piece async for piece in stream] for stream in streams]
        assert found == [[(number, item) for number in range(length)] for item in "ab"]
    for stop in (StopIteration, StopAsyncIteration):

        @batch(max_batch_size=3, batch_wait_timeout_s=LONG)
        async def ending(items: list[int], stop: Any = stop) -> Any:
            for ended in range(4):
                yield [stop if at < ended else item for at, item in enumerate(items)]

        streams = [ending(item) for item in range(3)]
        assert [[piece async for piece in stream] for stream in streams] == [[0], [1, 1], [2, 2, 2]]


@ends
async def test_an_error_of_a_stream_comes_after_its_pieces_and_ends_it(batch: Any) -> None:
    from ray.serve.exceptions import RayServeException

    for fault, expected in (("raises", RuntimeError), ("wrong length", RayServeException)):

        @batch(max_batch_size=2, batch_wait_timeout_s=LONG)
        async def faulty(items: list[str], fault: str = fault) -> Any:
            for number in range(2):
                yield [(number, item) for item in items]
            if fault == "raises":
                raise RuntimeError(fault)
            yield items * 2

        for stream in [faulty("a"), faulty("b")]:
            assert [await anext(stream) for _ in range(2)]
            with pytest.raises(expected):
                await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


@ends
async def test_the_accessors_tell_of_running_batches(batch: Any) -> None:
    free = asyncio.Event()

    async def held(items: list[Any]) -> list[Any]:
        await free.wait()
        return items

    for call in both(held, max_batch_size=1, max_concurrent_batches=3)(batch):
        free.clear()
        before = time.time()
        calls = started(call, 1, 2)
        assert await unfinished(*calls) == 2
        times = call._get_curr_iteration_start_times()
        assert (times.num_requests, len(times.start_times)) == (2, 2)
        assert before - 0.1 <= times.min_start_time <= times.mean_start_time <= times.max_start_time <= time.time()
        assert await call._is_batching_task_alive()
        assert isinstance(await call._get_handling_task_stack(), str)
        free.set()
        await asyncio.gather(*calls)
        await asyncio.sleep(0.1)
        assert call._get_curr_iteration_start_times().num_requests == 0
