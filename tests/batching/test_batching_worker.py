"""What can be observed of batches, keys, contexts of callers, closing, and time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import sys
from contextvars import ContextVar
from typing import Any

import pytest
from batching_tools import Blocked, Noted, kinds, later, now, outcomes, start, turns

from qreward.batching import BatchQueue, BatchRecord
from qreward.errors import ClientClosed

CALLER: ContextVar[str] = ContextVar("caller", default="none")


async def test_there_is_a_record_of_each_batch_with_its_size_waits_and_time() -> None:
    records: list[BatchRecord] = []

    noted = Noted(seconds=2)
    queue = BatchQueue(noted, max_batch_size=4, on_batch=records.append)
    callers = start(queue.submit, 0)
    await turns()
    callers += [asyncio.ensure_future(later(number * 0.5, queue.submit, number)) for number in range(1, 4)]
    await asyncio.sleep(1.6)
    stats = queue.stats()
    assert (stats.waiting, stats.in_flight, stats.batches, stats.items) == (3, 1, 1, 1)
    assert "3 waiting, 1 in flight" in repr(queue)
    await asyncio.gather(*callers)
    stats = queue.stats()
    assert (stats.waiting, stats.batches, stats.items, stats.mean_size) == (0, 2, 4, 2.0)
    assert (round(stats.wait_p50, 3), round(stats.wait_p95, 3), round(stats.run_p50, 3)) == (1.0, 1.5, 2.0)
    first, second = records
    assert (first.name, first.items, first.limit, first.waiting, first.error) == ("noted", 1, 4, 3, None)
    assert (second.items, second.size / second.limit, round(second.seconds, 6), second.waiting) == (3, 0.75, 2.0, 0)
    assert [round(seconds, 6) for seconds in second.waits] == [1.5, 1.0, 0.5]


async def test_an_observer_that_raises_is_logged_and_fails_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    def broken(record: BatchRecord) -> None:
        raise ValueError("observer")

    queue = BatchQueue(Noted(), on_batch=broken)
    assert await asyncio.gather(*start(queue.submit, 1, 2)) == [1, 2]
    assert await queue.submit(3) == 3
    assert "on_batch of noted raised" in caplog.text


async def test_items_of_different_keys_are_in_different_batches_and_each_takes_a_slot() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted, batch_key_fn=lambda item: item[0], max_concurrent_batches=2)
    items = ["a1", "b1", "a2", "c1", "b2", "a3"]
    assert await asyncio.gather(*map(queue.submit, items)) == items
    assert noted.batches == [["a1", "a2", "a3"], ["b1", "b2"], ["c1"]]
    assert noted.times == [0, 0, 1]


async def test_a_full_batch_of_one_key_does_not_wait_for_another_key() -> None:
    noted = Noted()
    queue = BatchQueue(noted, max_batch_size=2, batch_wait_timeout_s=10, batch_key_fn=lambda item: item[0])
    callers = start(queue.submit, "a1")
    await asyncio.sleep(1)
    await asyncio.gather(*start(queue.submit, "b1", "b2"))
    assert (noted.batches, now()) == ([["b1", "b2"]], 1)
    await asyncio.gather(*callers)
    assert now() == 10


async def test_a_key_function_that_raises_is_the_error_of_that_caller_alone() -> None:
    queue = BatchQueue(Noted(), batch_key_fn=lambda item: {"a": 1}[item])
    assert kinds(await outcomes(start(queue.submit, "a", "b"))) == ["a", KeyError]


@pytest.mark.parametrize("threaded", [True, False])
def test_no_callers_context_leaks_into_a_batch(threaded: bool) -> None:
    seen: list[str] = []

    def look(items: list[int]) -> list[int]:
        seen.append(CALLER.get())
        return items

    async def look_async(items: list[int]) -> list[int]:
        return look(items)

    async def call(queue: BatchQueue[int, int], name: str) -> None:
        CALLER.set(name)
        await queue.submit(1)

    async def test() -> None:
        function: Any = look if threaded else look_async
        queue: BatchQueue[int, int] = BatchQueue(function, max_queue_size=3)
        await asyncio.gather(*(asyncio.create_task(call(queue, name)) for name in "abc"))
        await asyncio.create_task(call(queue, "d"))
        CALLER.set("maker")
        crowded: BatchQueue[int, int] = BatchQueue(function, max_queue_size=10)
        CALLER.set("crowd")
        await asyncio.gather(*(crowded.submit(number) for number in range(12)))  # the last but one sends the first ten itself
        await asyncio.create_task(call(BatchQueue(function), "e"))

    asyncio.run(test())
    assert seen == ["none", "none", "maker", "maker", "crowd"]


async def test_what_a_batch_sets_in_its_context_is_not_seen_by_the_next() -> None:
    seen = []

    async def function(items: list[int]) -> list[int]:
        seen.append(CALLER.get())
        CALLER.set("the batch before")
        return items

    queue = BatchQueue(function)
    await queue.submit(1)
    await queue.submit(2)
    assert seen == ["none", "none"]


async def test_close_sends_what_waits_and_waits_for_what_runs() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted, max_batch_size=2, batch_wait_timeout_s=1000)
    callers = start(queue.submit, 1, 2, 3, 4, 5)
    await turns()
    await queue.close()
    assert now() == 3
    assert await asyncio.gather(*callers) == [1, 2, 3, 4, 5]
    for _ in range(2):
        assert kinds(await outcomes(start(queue.submit, 6))) == [ClientClosed]
        await queue.close()


async def test_close_without_drain_fails_what_waits_and_what_runs() -> None:
    noted = Noted(seconds=1000)
    queue = BatchQueue(noted, max_batch_size=2)
    callers = start(queue.submit, 1, 2, 3)
    await asyncio.sleep(1)
    await queue.close(drain=False)
    assert (now(), noted.cancelled) == (1, 1)
    found = await outcomes(callers)
    assert kinds(found) == [ClientClosed] * 3
    assert "the queue of noted was closed before the item was done" in str(found[0])


async def test_leaving_the_with_block_drains_unless_it_is_left_by_an_error() -> None:
    async with BatchQueue(Noted(seconds=5)) as drained:
        callers = start(drained.submit, 1)
        await turns()
    assert (await outcomes(callers), now()) == ([1], 5)
    with contextlib.suppress(KeyError):
        async with BatchQueue(Noted(seconds=5)) as left:
            callers = start(left.submit, 1)
            await asyncio.sleep(1)
            raise KeyError
    assert (kinds(await outcomes(callers)), now()) == ([ClientClosed], 6)


def test_nothing_is_left_when_a_loop_ends_amid_a_batch(recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture) -> None:
    queue = BatchQueue(Noted(seconds=1000))

    async def test() -> None:
        start(queue.submit, *range(30))
        await turns()

    asyncio.run(test())
    assert asyncio.run(later(0, BatchQueue(Noted()).submit, 1)) == 1
    assert (list(recwarn), caplog.records) == ([], [])


async def slow_stream(items: list[int]) -> Any:
    yield items
    await asyncio.sleep(1000)


async def read(stream: Any, item: int) -> None:
    async for _ in stream(item):
        pass


def test_a_loop_may_be_closed_with_items_pending(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: unraisable.append(found.exc_value))
    with Blocked() as blocked:
        functions: list[Any] = [Noted(seconds=1000), blocked, slow_stream]
        for function, running in itertools.product(functions, (False, True)):
            queue: Any = BatchQueue(function, batch_wait_timeout_s=0 if running else 1000)
            loop = asyncio.new_event_loop()
            callers = [loop.create_task(read(queue.stream, item) if function is slow_stream else queue.submit(item)) for item in range(3)]
            loop.run_until_complete(turns())
            assert queue.stats().in_flight == running, function
            loop.close()
            assert queue.stats().waiting == 0, function
            del queue, loop
            callers.clear()
        del blocked, function
    for _ in range(3):  # the thread of the blocked function, which holds its batch, has ended
        gc.collect()
    assert unraisable == []
    said = {record.getMessage().partition("!")[0] for record in caplog.records}
    assert said <= {"Task was destroyed but it is pending"}  # of the callers' tasks, by asyncio
