"""What ``@serve.batch`` promises, asked of Ray's decorator and of ours in the same words; without a cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from batch_tools import LONG, both, echo, ends, started, unfinished

import qreward

pytestmark = [pytest.mark.timeout(120), pytest.mark.real_time(60), pytest.mark.filterwarnings("ignore")]  # what Ray warns of is not ours


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
    with pytest.raises(TypeError, match="batch_size_fn must be a callable or None"):
        batch(batch_size_fn="sum")(echo)

    class Holder:
        @batch
        async def bare(self) -> None: ...

        @batch(max_batch_size=10, batch_wait_timeout_s=1.5)
        async def with_settings(self) -> None: ...

    with pytest.raises(TypeError, match="async def"):
        batch(plain)
    with pytest.raises(TypeError, match="async def"):

        class Wrong:
            @batch
            def method(self, items: list[Any]) -> list[Any]:
                return items


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
async def test_a_batch_that_is_not_full_waits_its_whole_time_after_its_first_item(batch: Any) -> None:
    for call in both(echo, max_batch_size=10, batch_wait_timeout_s=0.5)(batch):
        for pause in (0.5, 0):
            calls = started(call, *range(9))
            assert await unfinished(*calls, within=0.05) == 9
            calls += started(call, 9)
            assert await unfinished(*calls, within=0.4) == 0
            time.sleep(pause)  # noqa: ASYNC251 - the loop stands still, and the queue is empty, for as long as a batch would wait


@ends
async def test_what_comes_while_a_batch_runs_is_in_one_batch_without_a_timer(batch: Any) -> None:
    free = asyncio.Event()

    async def held(items: list[Any]) -> list[Any]:
        await free.wait()
        return await echo(items)

    for call in both(held, max_batch_size=2, batch_wait_timeout_s=0)(batch):
        free.clear()
        calls = started(call, "a")
        assert await unfinished(*calls, within=0.01) == 1
        calls += started(call, "b", "raise")
        free.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [found[0], type(found[1]), type(found[2])] == ["a", ZeroDivisionError, ZeroDivisionError]


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
async def test_setters_before_the_first_call_count_and_a_batch_that_fills_keeps_its_settings(batch: Any) -> None:
    for call in both(echo, max_batch_size=2, batch_wait_timeout_s=LONG)(batch):
        call.set_max_batch_size(3)
        call.set_batch_wait_timeout_s(2 * LONG)
        calls = started(call, 1, 2)
        assert await unfinished(*calls) == 2
        call.set_max_batch_size(1)
        call.set_batch_wait_timeout_s(0)
        assert (call._get_max_batch_size(), call._get_batch_wait_timeout_s()) == (1, 0)
        assert await unfinished(*calls) == 2
        calls += started(call, 3)
        assert await asyncio.wait_for(asyncio.gather(*calls), 5) == [1, 2, 3]
        assert await asyncio.wait_for(call(9), 5) == 9


@ends
async def test_a_size_function_limits_batches_and_an_item_that_is_too_large_fails_alone(batch: Any) -> None:
    seen: list[list[int]] = []

    async def note(items: list[int]) -> list[int]:
        seen.append(items)
        return items

    for call in both(note, max_batch_size=10, batch_wait_timeout_s=0.05, batch_size_fn=sum)(batch):
        for items, batches in (([6, 6], [[6], [6]]), ([2, 3, 4], [[2, 3, 4]])):
            seen.clear()
            assert await asyncio.gather(*started(call, *items)) == items
            assert seen == batches
        assert await asyncio.gather(*started(call, 4, 5, 6, 3)) == [4, 5, 6, 3]
        assert max(map(sum, seen)) <= 10
        fits, too_large = started(call, 6, 12)
        assert await fits == 6
        with pytest.raises(RuntimeError, match="greater than max_batch_size"):
            await too_large
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


@ends
async def test_a_size_beyond_the_ongoing_requests_of_the_replica_is_warned_of(batch: Any) -> None:
    from ray import serve

    most, said = 5, []
    serve.context._INTERNAL_REPLICA_CONTEXT._deployment_config.max_ongoing_requests = most
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    for name in ("ray.serve", "qreward"):
        logging.getLogger(name).addHandler(handler)
    for size in (most + 1, most - 1, most):
        for call in both(echo, max_batch_size=size, batch_wait_timeout_s=0)(batch):
            warned = f"`max_batch_size` ({size}) * `max_concurrent_batches` (1) is larger than `max_ongoing_requests` ({most})"
            for change in (False, True):
                said.clear()
                if change:
                    call.set_max_batch_size(size)
                else:
                    await call(1)
                assert [warned in text for text in said] == [True] * (size > most)
    for name in ("ray.serve", "qreward"):
        logging.getLogger(name).removeHandler(handler)


@ends
async def test_a_batch_has_one_model_fills_by_itself_and_shares_the_slots_with_other_models(batch: Any) -> None:
    from ray import serve

    seen: list[tuple[str, list[int]]] = []
    free, running, peak = asyncio.Event(), 0, 0

    async def note(items: list[int]) -> list[str]:
        nonlocal running, peak
        model = serve.get_multiplexed_model_id()
        seen.append((model, items))
        running += 1
        peak = max(peak, running)
        await free.wait()
        running -= 1
        return [f"{model}{item}" for item in items]

    def asked(call: Any, model: str, *items: int) -> list[asyncio.Task[Any]]:
        async def one(item: int) -> Any:
            serve.context._serve_request_context.set(serve.context._RequestContext(multiplexed_model_id=model))
            return await call(item)

        return started(one, *items)

    for call in both(note, max_batch_size=3, batch_wait_timeout_s=LONG)(batch):
        if not per_model(batch):
            pytest.skip("this version of Ray mixes the models of a batch, and splits it")
        seen.clear()
        free.set()
        ahead, behind = asked(call, "a", 0, 1), asked(call, "b", 0)
        assert await unfinished(*ahead, *behind) == 3
        assert seen == []
        assert await asyncio.gather(*ahead, *asked(call, "a", 2)) == ["a0", "a1", "a2"]
        assert await unfinished(*behind) == 1
        assert await asyncio.gather(*behind, *asked(call, "b", 1, 2)) == ["b0", "b1", "b2"]
        assert seen == [("a", [0, 1, 2]), ("b", [0, 1, 2])]
    for call in both(note, max_batch_size=1, batch_wait_timeout_s=0, max_concurrent_batches=2)(batch):
        free.clear()
        peak = 0
        calls = [task for model in "abc" for task in asked(call, model, 7)]
        assert await unfinished(*calls) == 3
        assert (running, peak) == (2, 2)
        free.set()
        assert await asyncio.gather(*calls) == ["a7", "b7", "c7"]
        assert peak == 2


def per_model(batch: Any) -> bool:
    """Whether a decorator collects the items of each model apart, as Ray does from some version on."""
    from ray.serve import batching

    return batch is qreward.batch or hasattr(batching._LazyBatchQueueWrapper, "_remove_queue_if_idle")
