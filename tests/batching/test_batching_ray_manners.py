"""Ray Serve's statements 52 to 60: setters, what can be observed, contexts, the end, and time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any

import pytest
from batching_tools import Noted, kinds, later, now, outcomes, settings_of, start, turns, virtually

from qreward.batching import BatchQueue, BatchRecord, batch, batch_contexts
from qreward.errors import ClientClosed, RequestTimeout

WHO: ContextVar[str] = ContextVar("who", default="nobody")


class Scorer:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    @batch(max_batch_size=2, batch_wait_timeout_s=1000)
    async def method(self, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        return items


@virtually
async def test_52_setters_and_getters_work_before_and_after_first_use_and_hold_for_all_instances() -> None:
    one, other = Scorer(), Scorer()
    assert (settings_of(one.method).max_batch_size, settings_of(one.method).batch_wait_timeout_s) == (2, 1000)
    await asyncio.gather(one.method(1), one.method(2))
    one.method.set_max_batch_size(3)
    one.method.set_batch_wait_timeout_s(15_000)
    assert (settings_of(Scorer.method).max_batch_size, settings_of(other.method).batch_wait_timeout_s) == (3, 15_000)
    await asyncio.gather(*map(one.method, range(3)), *map(other.method, range(3)))
    assert (one.sizes, other.sizes, now()) == ([2, 3], [3], 0)
    Scorer.method.set_max_batch_size(2)
    Scorer.method.set_batch_wait_timeout_s(1000)


@virtually
async def test_52_the_number_of_concurrent_batches_can_be_set_while_batches_wait() -> None:
    noted = Noted(seconds=10)
    queue = BatchQueue(noted, max_batch_size=1)
    callers = start(queue.submit, *range(6))
    await asyncio.sleep(1)
    assert noted.peak == 1
    queue.set_max_concurrent_batches(3)
    await asyncio.sleep(1)
    assert noted.peak == 3
    queue.set_max_concurrent_batches(1)
    await asyncio.sleep(10)
    assert noted.running == 1
    await asyncio.gather(*callers)
    assert noted.times == [0, 1, 1, 11, 21, 31]


@virtually
async def test_52_all_other_settings_can_be_changed_but_the_clock() -> None:
    noted = Noted()
    function = batch(noted)
    function.change(timeout=3, max_queue_size=5, batch_size_fn=sum)
    assert await asyncio.gather(*start(function, 4, 4, 4)) == [4, 4, 4]
    assert noted.batches == [[4, 4], [4]]
    with pytest.raises(ValueError, match="clock cannot be changed"):
        function.change(clock=time.monotonic)


@virtually
async def test_53_a_wrong_value_is_refused_and_changes_nothing() -> None:
    function = batch(max_batch_size=2)(Noted())
    for setter, wrong in (
        (function.set_max_batch_size, 0),
        (function.set_max_batch_size, "x"),
        (function.set_batch_wait_timeout_s, "x"),
        (function.set_batch_wait_timeout_s, -1),
        (function.set_max_concurrent_batches, 0),
    ):
        with pytest.raises((TypeError, ValueError)):
            setter(wrong)  # type: ignore[arg-type]
    assert (settings_of(function).max_batch_size, settings_of(function).batch_wait_timeout_s) == (2, 0.0)
    assert await function(1) == 1


@virtually
async def test_54_a_batched_function_can_be_closed() -> None:
    function = Slow().method
    callers = start(function, 1, 2, 3)
    await turns()
    assert function.stats().in_flight == 2
    await asyncio.gather(*callers)
    await function.close()
    assert kinds(await outcomes(start(function, 1))) == [ClientClosed]


class Slow:
    @batch(max_batch_size=1, max_concurrent_batches=2)
    async def method(self, items: list[int]) -> list[int]:
        await asyncio.sleep(1)
        return items


def test_55_a_queue_that_has_no_room_for_a_full_batch_warns_when_made_and_when_set(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "qreward"):
        BatchQueue(Noted(), max_batch_size=10, max_queue_size=10)
        assert caplog.records == []
        queue: Any = BatchQueue(Noted(), max_batch_size=11, max_queue_size=10)
        assert "max_batch_size (11) is larger than max_queue_size (10)" in caplog.text
        caplog.clear()
        queue.set_max_batch_size(10)
        assert caplog.records == []
        queue.set_max_batch_size(12)
        assert "max_batch_size (12)" in caplog.text


@virtually
async def test_56_each_batch_is_told_of_with_all_that_rays_six_metrics_hold() -> None:
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


@virtually
async def test_56_an_observer_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(record: BatchRecord) -> None:
        raise ValueError("observer")

    queue = BatchQueue(Noted(), on_batch=broken)
    assert await asyncio.gather(*start(queue.submit, 1, 2)) == [1, 2]
    assert await queue.submit(3) == 3
    assert "on_batch of noted raised" in caplog.text


@virtually
async def test_57_items_of_different_keys_are_in_different_batches_and_each_takes_a_slot() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted, batch_key_fn=lambda item: item[0], max_concurrent_batches=2)
    items = ["a1", "b1", "a2", "c1", "b2", "a3"]
    assert await asyncio.gather(*map(queue.submit, items)) == items
    assert noted.batches == [["a1", "a2", "a3"], ["b1", "b2"], ["c1"]]
    assert noted.times == [0, 0, 1]


@virtually
async def test_57_a_full_batch_of_one_key_does_not_wait_for_another_key() -> None:
    noted = Noted()
    queue = BatchQueue(noted, max_batch_size=2, batch_wait_timeout_s=10, batch_key_fn=lambda item: item[0])
    callers = start(queue.submit, "a1")
    await asyncio.sleep(1)
    await asyncio.gather(*start(queue.submit, "b1", "b2"))
    assert (noted.batches, now()) == ([["b1", "b2"]], 1)
    await asyncio.gather(*callers)
    assert now() == 10


@virtually
async def test_57_a_key_function_that_raises_is_the_error_of_that_caller_alone() -> None:
    queue = BatchQueue(Noted(), batch_key_fn=lambda item: {"a": 1}[item])
    assert kinds(await outcomes(start(queue.submit, "a", "b"))) == ["a", KeyError]


@pytest.mark.parametrize("threaded", [True, False])
def test_58_no_callers_context_leaks_into_a_batch_but_the_function_can_see_them_all(threaded: bool) -> None:
    seen: list[tuple[str, list[Any]]] = []

    def look(items: list[int]) -> list[int]:
        seen.append((WHO.get(), [context.get(WHO, "unset") for context in batch_contexts()]))
        return items

    async def look_async(items: list[int]) -> list[int]:
        return look(items)

    async def call(queue: BatchQueue[int, int], name: str) -> None:
        WHO.set(name)
        await queue.submit(1)

    async def test() -> None:
        function: Any = look if threaded else look_async
        for carry in (False, True):
            queue: BatchQueue[int, int] = BatchQueue(function, carry_contexts=carry, max_queue_size=3)
            await asyncio.gather(*(asyncio.create_task(call(queue, name)) for name in "abc"))
            await asyncio.create_task(call(queue, "d"))
        WHO.set("maker")
        crowded: BatchQueue[int, int] = BatchQueue(function, max_queue_size=10)
        WHO.set("crowd")
        await asyncio.gather(*(crowded.submit(number) for number in range(12)))  # the last but one sends the first ten itself
        await asyncio.create_task(call(BatchQueue(function), "e"))

    asyncio.run(test())
    assert seen == [("nobody", []), ("nobody", []), ("nobody", ["a", "b", "c"]), ("nobody", ["d"]), *[("maker", [])] * 2, ("crowd", [])]
    assert batch_contexts() == ()


@virtually
async def test_58_what_a_batch_sets_in_its_context_is_not_seen_by_the_next() -> None:
    seen = []

    async def function(items: list[int]) -> list[int]:
        seen.append(WHO.get())
        WHO.set("the batch before")
        return items

    queue = BatchQueue(function)
    await queue.submit(1)
    await queue.submit(2)
    assert seen == ["nobody", "nobody"]


@virtually
async def test_59_close_sends_what_waits_and_waits_for_what_runs() -> None:
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


@virtually
async def test_59_close_without_drain_fails_what_waits_and_what_runs() -> None:
    noted = Noted(seconds=1000)
    queue = BatchQueue(noted, max_batch_size=2)
    callers = start(queue.submit, 1, 2, 3)
    await asyncio.sleep(1)
    await queue.close(drain=False)
    assert (now(), noted.cancelled) == (1, 1)
    found = await outcomes(callers)
    assert kinds(found) == [ClientClosed] * 3
    assert "the queue of noted was closed before the item was done" in str(found[0])


@pytest.mark.parametrize("fails", [True, False])
@virtually
async def test_59_leaving_the_with_block_drains_unless_it_is_left_by_an_error(fails: bool) -> None:
    noted = Noted(seconds=5)
    callers = []
    with pytest.raises(KeyError) if fails else contextlib.nullcontext():
        async with BatchQueue(noted) as queue:
            callers = start(queue.submit, 1)
            await asyncio.sleep(1)
            if fails:
                raise KeyError
    assert kinds(await outcomes(callers)) == ([ClientClosed] if fails else [1])
    assert now() == (1 if fails else 5)


def test_59_nothing_is_left_when_a_loop_ends_amid_a_batch(recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture) -> None:
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


def slow_thread(items: list[int]) -> list[int]:
    released.wait(10)
    return items


released = threading.Event()


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("function", [Noted(seconds=1000), slow_thread, slow_stream], ids=["async", "thread", "stream"])
def test_59_a_loop_may_be_closed_with_items_pending(
    function: Any, running: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: unraisable.append(found.exc_value))
    released.clear()
    queue = BatchQueue(function, batch_wait_timeout_s=0 if running else 1000)

    loop = asyncio.new_event_loop()
    callers = [loop.create_task(read(queue.stream, item) if function is slow_stream else queue.submit(item)) for item in range(3)]
    loop.run_until_complete(turns())
    assert queue.stats().in_flight == running
    loop.close()
    assert queue.stats().waiting == 0
    del queue
    callers.clear()
    for _ in range(3):
        gc.collect()
    released.set()
    assert unraisable == []
    said = {record.getMessage().partition("!")[0] for record in caplog.records}
    assert said <= {"Task was destroyed but it is pending"}  # of the callers' tasks, by asyncio


@virtually
async def test_60_deadlines_do_not_know_the_wall_clock_and_no_timer_is_set_for_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = asyncio.get_running_loop()
    queue = BatchQueue(Noted(seconds=1), max_batch_size=200, timeout=60)
    callers = start(queue.submit, *range(100))
    await turns(2)
    assert len(loop.timers()) <= 2  # the first deadline, and the sleep of the function
    monkeypatch.setattr(time, "time", lambda: 10.0**9)  # somebody sets the clock
    await asyncio.gather(*callers)
    assert now() == 1
    assert loop.timers() == []


@virtually
async def test_a_timer_that_rings_too_early_is_set_again() -> None:
    loop = asyncio.get_running_loop()
    slow = BatchQueue(Noted(seconds=100), clock=lambda: loop.time() / 2)
    assert kinds(await outcomes(start(slow.submit, 1, timeout=3))) == [RequestTimeout]
    assert now() == 6


@virtually
async def test_a_clock_of_ones_own_is_the_time_of_deadlines() -> None:
    loop = asyncio.get_running_loop()
    queue = BatchQueue(Noted(seconds=100), clock=lambda: 1000 + loop.time())
    assert kinds(await outcomes(start(queue.submit, 1, timeout=3))) == [RequestTimeout]
    assert now() == 3
