"""BatchQueue beyond what Ray has: budgets of time, threads, a size that is found out, several loops, the pace of several slots."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
from random import Random
from typing import Any

import pytest
from batching_tools import Blocked, Noted, kinds, now, outcomes, start, turns

from qreward.batching import BatchQueue, batch
from qreward.errors import ClientClosed, ConfigError, QueueFull, RequestTimeout


async def test_a_timeout_counts_the_running_batch_too_and_leaves_the_others_alone() -> None:
    noted = Noted(seconds=10)
    queue = BatchQueue(noted)
    callers = [*start(queue.submit, 1, timeout=3), *start(queue.submit, 2)]
    with pytest.raises(RequestTimeout, match="its batch was under way") as caught:
        await callers[0]
    assert isinstance(caught.value, TimeoutError)
    assert now() == 3
    assert await callers[1] == 2
    assert (now(), noted.cancelled) == (10, 0)


async def test_a_batch_whose_callers_have_all_run_out_of_time_is_cancelled() -> None:
    noted = Noted(seconds=1000)
    queue = BatchQueue(noted, timeout=5)
    assert kinds(await outcomes(start(queue.submit, 1, 2))) == [RequestTimeout] * 2
    await turns()
    assert (now(), noted.cancelled, queue.stats().in_flight) == (5, 1, 0)


async def test_a_priority_may_be_a_name_and_a_wrong_priority_or_timeout_is_refused() -> None:
    queue = BatchQueue(Noted())
    for priority in ("high", "NORMAL", "low", 3):
        assert await queue.submit(4, priority=priority) == 4, priority
    wrong: list[dict[str, Any]] = [*({"priority": value} for value in (10, -1, True, 1.0)), {"timeout": 0}, {"timeout": "1"}]
    found = await outcomes([queue.submit(1, **settings) for settings in wrong])
    refused = [isinstance(one, ConfigError | TypeError) and name in str(one) for one, (name,) in zip(found, wrong, strict=True)]
    assert refused == [True] * len(wrong), found


def test_a_function_in_threads_blocks_no_loop_and_runs_in_as_many_as_there_are_slots() -> None:
    async def test(blocked: Blocked) -> None:
        queue = BatchQueue(blocked, max_batch_size=1, max_concurrent_batches=3)
        callers = start(queue.submit, *range(9))
        for _ in range(3):
            assert await asyncio.to_thread(blocked.began.acquire, timeout=30)
        assert queue.stats().in_flight == 3
        assert not blocked.began.acquire(blocking=False)
        blocked.free.set()
        assert await asyncio.gather(*callers) == list(range(9))
        await queue.close()
        assert len(blocked.idents) == 3

    with Blocked() as blocked:
        asyncio.run(test(blocked))


def test_a_batch_in_a_thread_keeps_its_slot_until_it_is_done_though_its_caller_left_and_a_close_without_drain_does_not_wait() -> None:
    async def test(blocked: Blocked) -> None:
        queue = BatchQueue(blocked)
        callers = start(queue.submit, 1)
        assert await asyncio.to_thread(blocked.began.acquire, timeout=30)
        callers[0].cancel()
        assert kinds(await outcomes(callers)) == [asyncio.CancelledError]
        assert queue.stats().in_flight == 1
        blocked.free.set()
        assert await queue.submit(2) == 2
        blocked.free.clear()
        callers = start(queue.submit, 3)
        for _ in range(2):
            assert await asyncio.to_thread(blocked.began.acquire, timeout=30)
        await queue.close(drain=False)
        assert not blocked.free.is_set()
        assert kinds(await outcomes(callers)) == [ClientClosed]

    with Blocked() as blocked:
        asyncio.run(test(blocked))


def test_close_reaches_the_loops_of_other_threads() -> None:
    noted = Noted(seconds=0.02)
    queue = BatchQueue(noted, max_batch_size=1)
    submitted, found = threading.Event(), []

    async def elsewhere() -> None:
        callers = start(queue.submit, 1, 2, 3)
        await turns()
        submitted.set()
        found.extend(await outcomes(callers))

    async def test() -> None:
        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        thread.start()
        await asyncio.to_thread(submitted.wait, 30)
        await queue.close()
        assert noted.running == 0
        await asyncio.to_thread(thread.join)

    asyncio.run(test())
    assert found == [1, 2, 3]


async def test_many_items_are_taken_in_together_or_not_at_all() -> None:
    noted = Noted(seconds=1)
    async with BatchQueue(noted, max_batch_size=2, max_queue_size=4) as queue:
        many = asyncio.ensure_future(queue.submit_many(range(4)))
        await turns()
        with pytest.raises(QueueFull, match="2 items are already waiting for noted; 3 more do not fit"):
            await queue.submit_many([7, 8, 9])
        assert await asyncio.gather(many, queue.submit_many([5, 6])) == [[0, 1, 2, 3], [5, 6]]
        assert await queue.submit_many([]) == []
        assert noted.batches == [[0, 1], [2, 3], [5, 6]]
        assert queue.stats().rejected == 3
    with pytest.raises(ClientClosed):
        await queue.submit_many([1])


async def test_each_of_many_items_has_its_own_outcome() -> None:
    async def function(items: list[int]) -> list[Any]:
        await asyncio.sleep(len(items))
        return [KeyError(item) if item == 2 else -item for item in items]

    queue = BatchQueue(function, max_batch_size=4, batch_size_fn=lambda items: sum(map(abs, items)))
    assert kinds(await queue.submit_many([1, 2, 7, 3], timeout=10)) == [-1, KeyError, RuntimeError, -3]
    assert kinds(await queue.submit_many([1, 1, 3], timeout=2.5)) == [-1, -1, RequestTimeout]


async def test_an_exception_that_is_false_is_an_outcome_like_any_other() -> None:
    class Problems(ValueError):
        def __len__(self) -> int:
            return len(self.args)

    async def function(items: list[int]) -> list[Any]:
        return [Problems() if item == 1 else item for item in items]

    queue = BatchQueue(function)
    assert kinds(await queue.submit_many([0, 1, 2])) == [0, Problems, 2]


async def test_cancelling_a_call_with_many_items_cancels_them_all() -> None:
    noted = Noted(seconds=100)
    queue = BatchQueue(noted, max_batch_size=2)
    many = asyncio.ensure_future(queue.submit_many(range(6)))
    await asyncio.sleep(1)
    many.cancel()
    assert kinds(await outcomes([many])) == [asyncio.CancelledError]
    await queue.close()
    assert (now(), noted.batches, noted.cancelled, queue.stats().cancelled) == (1, [[0, 1]], 1, 6)


def test_loops_one_after_the_other_are_served_and_what_they_did_is_still_counted() -> None:
    class C:
        @batch
        async def method(self, items: list[int]) -> list[int]:
            return items

    async def some() -> list[int]:
        return await asyncio.gather(*(C().method(item) for item in range(3)))

    queue: BatchQueue[int, int] = BatchQueue(Noted())
    for _ in range(2):
        assert asyncio.run(some()) == [0, 1, 2]
        assert asyncio.run(queue.submit_many(range(4))) == [0, 1, 2, 3]  # type: ignore[arg-type]
    gc.collect()
    assert len(queue.loop_workers()) == 0
    assert (C.method.stats().items, C.method.stats().batches) == (6, 6)
    assert (queue.stats().items, queue.stats().batches) == (8, 2)


async def test_several_slots_are_paced_so_that_a_call_waits_little() -> None:
    """300 ms and 5 ms an item, eight slots, Poisson arrivals at a fifth of the capacity: the median is 0.35 s, without a pace 0.4."""
    queue = BatchQueue(Noted(seconds=0.3, each=0.005), max_batch_size=32, max_concurrent_batches=8)
    random, loop, took = Random(7), asyncio.get_running_loop(), list[float]()

    async def call(number: int) -> None:
        began = loop.time()
        await queue.submit(number)
        took.append(loop.time() - began)

    async with asyncio.TaskGroup() as calls:
        for number in range(500):
            calls.create_task(call(number))
            await asyncio.sleep(random.expovariate(0.2 * 8 * 32 / 0.46))
    assert statistics.median(took) < 0.37
