"""BatchQueue beyond what Ray has: budgets of time, threads, a size that is found out, several loops, the pace of several slots."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
from batching_tools import Noted, kinds, now, outcomes, start, turns, virtually

from qreward.batching import BatchQueue, BatchSettings, batch
from qreward.batching.policy import BatchPolicy
from qreward.batching.settings import Options
from qreward.errors import ClientClosed, ConfigError, QueueFull, RequestTimeout
from qreward.testing.virtual_time import run_in_virtual_time


@virtually
async def test_a_timeout_counts_the_running_batch_too_and_leaves_the_others_alone() -> None:
    noted = Noted(seconds=10)
    queue = BatchQueue(noted)
    callers = [*start(queue.submit, 1, timeout=3), *start(queue.submit, 2)]
    with pytest.raises(RequestTimeout, match="its batch was under way"):
        await callers[0]
    assert now() == 3
    assert await callers[1] == 2
    assert (now(), noted.cancelled) == (10, 0)


@virtually
async def test_a_batch_whose_callers_have_all_run_out_of_time_is_cancelled() -> None:
    noted = Noted(seconds=1000)
    queue = BatchQueue(noted, timeout=5)
    assert kinds(await outcomes(start(queue.submit, 1, 2))) == [RequestTimeout] * 2
    await turns()
    assert (now(), noted.cancelled, queue.stats().in_flight) == (5, 1, 0)


@virtually
async def test_a_request_timeout_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        await BatchQueue(Noted(seconds=9)).submit(1, timeout=0.5)


@pytest.mark.parametrize("priority", ["high", "NORMAL", "low", 3])
@virtually
async def test_a_priority_may_be_a_name(priority: Any) -> None:
    assert await BatchQueue(Noted()).submit(4, priority=priority) == 4


@pytest.mark.parametrize(
    "wrong", [{"priority": 10}, {"priority": -1}, {"priority": True}, {"priority": 1.0}, {"timeout": 0}, {"timeout": "1"}]
)
@virtually
async def test_a_wrong_priority_or_timeout_is_refused(wrong: Any) -> None:
    with pytest.raises((ConfigError, TypeError), match=next(iter(wrong))):
        await BatchQueue(Noted()).submit(1, **wrong)


def test_a_function_in_threads_blocks_no_loop_and_runs_in_as_many_as_there_are_slots() -> None:
    free = threading.Event()
    running = threading.Semaphore(0)
    idents = set()

    def function(items: list[int]) -> list[int]:
        idents.add(threading.get_ident())
        running.release()
        assert free.wait(10)
        return items

    async def test() -> None:
        queue = BatchQueue(function, max_batch_size=1, max_concurrent_batches=3)
        callers = start(queue.submit, *range(9))
        for _ in range(3):
            assert await asyncio.to_thread(running.acquire, timeout=10)
        assert queue.stats().in_flight == 3
        assert not running.acquire(blocking=False)
        free.set()
        assert await asyncio.gather(*callers) == list(range(9))
        await queue.close()

    asyncio.run(test())
    assert len(idents) == 3


def test_a_thread_that_nobody_waits_for_keeps_its_slot_until_it_is_done() -> None:
    free, began = threading.Event(), threading.Event()

    def function(items: list[int]) -> list[int]:
        began.set()
        assert free.wait(10)
        return items

    async def test() -> None:
        queue = BatchQueue(function)
        callers = start(queue.submit, 1)
        await asyncio.to_thread(began.wait, 10)
        callers[0].cancel()
        assert kinds(await outcomes(callers)) == [asyncio.CancelledError]
        assert queue.stats().in_flight == 1
        free.set()
        assert await queue.submit(2) == 2

    asyncio.run(test())


def test_closing_without_drain_does_not_wait_for_a_thread() -> None:
    free, began = threading.Event(), threading.Event()

    def function(items: list[int]) -> list[int]:
        began.set()
        free.wait(10)
        return items

    async def test() -> None:
        queue = BatchQueue(function)
        callers = start(queue.submit, 1)
        await asyncio.to_thread(began.wait, 10)
        await queue.close(drain=False)
        assert not free.is_set()
        assert kinds(await outcomes(callers)) == [ClientClosed]

    try:
        asyncio.run(test())
    finally:
        free.set()


def test_a_function_in_a_thread_that_raises_fails_its_callers() -> None:
    @batch()
    def function(items: list[int]) -> list[int]:
        raise KeyError(items[0])

    async def test() -> None:
        assert kinds(await outcomes(start(function, 1, 2))) == [KeyError, KeyError]

    asyncio.run(test())


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
        await asyncio.to_thread(submitted.wait, 10)
        await queue.close()
        assert noted.running == 0
        await asyncio.to_thread(thread.join)

    asyncio.run(test())
    assert found == [1, 2, 3]


@virtually
async def test_many_items_are_taken_in_together_or_not_at_all() -> None:
    noted = Noted(seconds=1)
    async with BatchQueue(noted, max_batch_size=2, max_queue_size=4) as queue:
        many = asyncio.ensure_future(queue.submit_many(range(4)))
        await turns()
        with pytest.raises(QueueFull, match="2 items are waiting for noted already; there is no room for 3 more"):
            await queue.submit_many([7, 8, 9])
        assert await asyncio.gather(many, queue.submit_many([5, 6])) == [[0, 1, 2, 3], [5, 6]]
        assert await queue.submit_many([]) == []
        assert noted.batches == [[0, 1], [2, 3], [5, 6]]
        assert queue.stats().rejected == 3
    with pytest.raises(ClientClosed):
        await queue.submit_many([1])


@virtually
async def test_each_of_many_items_has_its_own_outcome() -> None:
    async def function(items: list[int]) -> list[Any]:
        await asyncio.sleep(len(items))
        return [KeyError(item) if item == 2 else -item for item in items]

    queue = BatchQueue(function, max_batch_size=4, batch_size_fn=lambda items: sum(map(abs, items)))
    assert kinds(await queue.submit_many([1, 2, 7, 3], timeout=10)) == [-1, KeyError, RuntimeError, -3]
    assert kinds(await queue.submit_many([1, 1, 3], timeout=2.5)) == [-1, -1, RequestTimeout]


@virtually
async def test_who_leaves_many_items_leaves_them_all() -> None:
    noted = Noted(seconds=100)
    queue = BatchQueue(noted, max_batch_size=2)
    many = asyncio.ensure_future(queue.submit_many(range(6)))
    await asyncio.sleep(1)
    many.cancel()
    assert kinds(await outcomes([many])) == [asyncio.CancelledError]
    await queue.close()
    assert (now(), noted.batches, noted.cancelled, queue.stats().cancelled) == (1, [[0, 1]], 1, 6)


def test_what_loops_and_instances_did_that_are_gone_is_still_counted() -> None:
    class C:
        @batch
        async def method(self, items: list[int]) -> list[int]:
            return items

    async def some() -> None:
        await asyncio.gather(*(C().method(item) for item in range(3)))

    queue: BatchQueue[int, int] = BatchQueue(Noted())
    for _ in range(2):
        asyncio.run(some())
        asyncio.run(queue.submit_many(range(4)))  # type: ignore[arg-type]
    gc.collect()
    assert (C.method.stats().items, C.method.stats().batches) == (6, 6)
    assert (queue.stats().items, queue.stats().batches) == (8, 2)


@virtually
async def test_the_largest_batch_can_be_found_out() -> None:
    async def function(items: list[int]) -> list[int]:
        await asyncio.sleep(0.02 + 0.001 * len(items))
        return items

    queue = BatchQueue(function, max_batch_size=10_000, adaptive_batch_size=True)
    loop = asyncio.get_running_loop()
    ends = loop.time() + 60

    async def caller() -> None:
        while loop.time() < ends:
            await queue.submit(1)

    assert queue.stats().limit == 8
    await asyncio.gather(*(caller() for _ in range(600)))
    assert 80 <= queue.stats().limit <= 300


@pytest.mark.parametrize("error", [MemoryError(), TimeoutError(), RuntimeError("CUDA out of memory")])
@virtually
async def test_a_batch_that_fails_for_its_size_makes_the_next_ones_smaller(error: Exception) -> None:
    async def function(items: list[int]) -> list[int]:
        await asyncio.sleep(0.1)
        if len(items) > 30:
            raise error
        return items

    queue = BatchQueue(function, max_batch_size=200, adaptive_batch_size=True)
    found: list[Any] = []

    async def caller() -> None:
        for _ in range(100):
            found.extend(await outcomes([queue.submit(1)]))

    await asyncio.gather(*(caller() for _ in range(100)))
    failed = sum(isinstance(one, type(error)) for one in found)
    assert 0 < failed < len(found) / 20
    assert queue.stats().limit <= 36


@virtually
async def test_without_the_setting_a_failure_changes_no_limit() -> None:
    async def function(items: list[int]) -> list[int]:
        raise MemoryError

    queue: BatchQueue[int, int] = BatchQueue(function, max_batch_size=20)
    await outcomes(start(queue.submit, *range(20)))
    assert queue.stats().limit == 20


def test_several_slots_are_paced_and_a_call_waits_less_than_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 ms and 5 ms an item, eight slots, Poisson arrivals at a fifth of the capacity."""

    async def test() -> float:
        noted = Noted(seconds=0.3, each=0.005)
        queue = BatchQueue(noted, max_batch_size=32, max_concurrent_batches=8)
        random, loop, took = Random(7), asyncio.get_running_loop(), []

        async def call(number: int) -> None:
            began = loop.time()
            await queue.submit(number)
            took.append(loop.time() - began)

        calls = []
        for number in range(2000):
            calls.append(asyncio.ensure_future(call(number)))
            await asyncio.sleep(random.expovariate(0.2 * 8 * 32 / 0.46))
        await asyncio.gather(*calls)
        return statistics.median(took)

    paced = run_in_virtual_time(test())
    with monkeypatch.context() as patch:
        patch.setattr(BatchPolicy, "done", lambda self, seconds: None)  # natural batching alone
        natural = run_in_virtual_time(test())
    assert paced < 0.9 * natural


@virtually
async def test_a_function_that_submits_to_its_own_queue_gets_its_answer() -> None:
    async def function(items: list[int]) -> list[int]:
        return [await queue.submit(item - 1) + 1 if item else 0 for item in items]

    queue: BatchQueue[int, int] = BatchQueue(function, max_concurrent_batches=9)
    assert await queue.submit(5) == 5


@virtually
async def test_ten_thousand_items_cancelled_in_the_queue_leave_nothing_behind() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted, timeout=3600)
    first = start(queue.submit, "first")
    await turns()
    callers = start(queue.submit, *range(10_000))
    await turns()
    for caller in callers:
        caller.cancel()
    await outcomes(callers)
    (loop_worker,) = queue.loop_workers()
    assert (loop_worker.backlog.waiting, len(loop_worker.backlog.items())) == (0, 0)
    await asyncio.gather(*first)
    assert queue.stats().cancelled == 10_000
    assert noted.batches == [["first"]]


@pytest.mark.parametrize("callers", [1, 64])
def test_a_call_costs_little(callers: int) -> None:
    """A loose bound, so that a mistake of an order of magnitude is seen on any machine; the benchmark has the figures."""

    async def test() -> float:
        queue = BatchQueue(Noted(), max_batch_size=32)

        async def caller(times: int) -> None:
            for _ in range(times):
                await queue.submit(1)

        began = time.process_time()
        await asyncio.gather(*(caller(3200 // callers) for _ in range(callers)))
        return (time.process_time() - began) / 3200

    assert asyncio.run(test()) < 500e-6


def test_the_settings_are_the_same_in_code_for_type_checkers_and_on_the_page() -> None:
    names = {field.name: field.default for field in fields(BatchSettings)}
    assert set(Options.__annotations__) == set(names)
    page = (Path(__file__).parents[2] / "docs" / "batching.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == {name: repr(default) for name, default in names.items()}
