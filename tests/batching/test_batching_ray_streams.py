"""Ray Serve's statements 46 to 51: a function that yields, a stream for each caller, and who waits for whom."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from batching_tools import kinds, now, outcomes, turns, virtually

from qreward.batching import BatchQueue, batch
from qreward.batching.streaming import AHEAD, KEPT
from qreward.errors import ClientClosed, InvalidResponse, RequestTimeout


class Counting:
    """Yields (number, item) for ever, or so many times; notes how far it came and how it ended."""

    def __init__(self, times: int = 10**9, seconds: float = 0.0) -> None:
        self.times = times
        self.seconds = seconds
        self.yielded = 0
        self.batches: list[list[Any]] = []
        self.closed = 0

    async def __call__(self, items: list[Any]) -> AsyncGenerator[list[Any], None]:
        self.batches.append(items)
        try:
            for number in range(self.times):
                if self.seconds:
                    await asyncio.sleep(self.seconds)
                self.yielded = number + 1
                yield [(number, item) for item in items]
        finally:
            self.closed += 1


def stream_of(counting: Any, *items: Any, **settings: Any) -> list[Any]:
    queue = BatchQueue(counting, **settings)
    return [queue.stream(item) for item in items]


async def all_of(stream: Any) -> list[Any]:
    return [piece async for piece in stream]


@pytest.mark.parametrize("length", [0, 2, 5])
@pytest.mark.parametrize("of_class", [True, False])
@virtually
async def test_46_each_caller_gets_an_async_generator_of_its_own_pieces(length: int, of_class: bool) -> None:
    class C:
        @batch(max_batch_size=2, batch_wait_timeout_s=1000)
        async def method(self, key1: list[str], key2: list[str]) -> Any:
            for number in range(length):
                yield [(number, a, b) for a, b in zip(key1, key2, strict=True)]

    @batch(max_batch_size=2, batch_wait_timeout_s=1000)
    async def function(key1: list[str], key2: list[str]) -> Any:
        for number in range(length):
            yield [(number, a, b) for a, b in zip(key1, key2, strict=True)]

    c = C()
    call: Any = c.method if of_class else function
    streams = [call("a", "b"), call(key2="d", key1="c")]
    assert all(isinstance(stream, AsyncGenerator) for stream in streams)
    # submitted when called, and read one after the other
    assert await all_of(streams[0]) == [(number, "a", "b") for number in range(length)]
    assert await all_of(streams[1]) == [(number, "c", "d") for number in range(length)]
    assert now() == 0


@virtually
async def test_46_a_list_of_another_length_is_an_error_at_that_step_and_then_the_end() -> None:
    closed = []

    async def function(items: list[int]) -> Any:
        try:
            yield items
            yield [*items, 0]
            yield items
        finally:
            closed.append(True)

    for stream in stream_of(function, 1, 2):
        assert await anext(stream) in {1, 2}
        with pytest.raises(InvalidResponse, match="preserve batch size"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert closed == [True]


@pytest.mark.parametrize("end", [StopIteration, StopAsyncIteration, StopIteration()])
@virtually
async def test_47_a_stop_in_a_slot_ends_that_caller_and_no_other(end: Any) -> None:
    async def function(items: list[int]) -> Any:
        for number in range(5):
            yield [end if number >= item else number for item in items]

    assert await asyncio.gather(*map(all_of, stream_of(function, 2, 0, 4, 9))) == [[0, 1], [], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


@virtually
async def test_47_callers_may_be_ended_one_after_the_other_and_read_so() -> None:
    go_on = asyncio.Event()

    async def function(items: list[int]) -> Any:
        for done in range(1, 5):
            go_on.clear()
            yield [StopIteration] * done + items[done:]
            await go_on.wait()

    for item, stream in enumerate(stream_of(function, 0, 1, 2, 3)):
        assert all(piece == item for piece in await all_of(stream))
        go_on.set()


@virtually
async def test_48_an_exception_of_the_function_reaches_each_caller_after_what_came_before_it() -> None:
    async def function(items: list[int]) -> Any:
        yield items
        yield [StopIteration, *items[1:]]
        raise ValueError("broke")

    streams = stream_of(function, 1, 2, 3)
    assert [await anext(stream) for stream in streams] == [1, 2, 3]
    assert await all_of(streams[0]) == []
    assert [await anext(stream) for stream in streams[1:]] == [2, 3]
    errors = await outcomes([anext(stream) for stream in streams[1:]])
    assert kinds(errors) == [ValueError, ValueError]
    assert errors[0] is not errors[1]
    assert [await all_of(stream) for stream in streams[1:]] == [[], []]


@virtually
async def test_48_an_exception_in_a_slot_ends_that_caller_alone() -> None:
    async def function(items: list[int]) -> Any:
        yield [KeyError(item) if item == 2 else item for item in items]
        yield items

    found = await outcomes([all_of(stream) for stream in stream_of(function, 1, 2)])
    assert (found[0], type(found[1])) == ([1, 1], KeyError)


class Array:
    """Compares like an array: there is no truth in it."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


@virtually
async def test_49_a_slot_may_hold_anything() -> None:
    pieces = [{"a": 1}, Array(), None, ValueError]

    async def function(items: list[int]) -> Any:
        yield pieces

    found = await asyncio.gather(*map(all_of, stream_of(function, 0, 1, 2, 3)))
    assert all(len(read) == 1 and read[0] is piece for read, piece in zip(found, pieces, strict=True))


@virtually
async def test_50_a_generator_is_only_a_little_ahead_of_its_readers() -> None:
    counting = Counting()
    streams = stream_of(counting, "a", "b")
    await turns(50)
    assert counting.yielded == AHEAD
    for number in range(20):
        assert await anext(streams[0]) == (number, "a")
    await turns(50)
    assert counting.yielded == AHEAD + 20
    for stream in streams:
        await stream.aclose()
    await turns()
    assert counting.closed == 1


@virtually
async def test_50_a_slow_reader_is_waited_for_and_one_that_leaves_is_not() -> None:
    counting = Counting()
    fast, slow = stream_of(counting, "fast", "slow")
    assert await anext(slow) == (0, "slow")
    for _ in range(KEPT + 1):
        await anext(fast)
    waiting = asyncio.ensure_future(anext(fast))
    await turns(50)
    assert not waiting.done()
    assert counting.yielded == KEPT + 1
    assert await anext(slow) == (1, "slow")
    assert await waiting == (KEPT + 1, "fast")
    waiting = asyncio.ensure_future(anext(fast))
    await turns(50)
    assert not waiting.done()
    await slow.aclose()
    assert await waiting == (KEPT + 2, "fast")
    await fast.aclose()
    assert await all_of(fast) == await all_of(slow) == []
    await turns()
    assert counting.closed == 1


@virtually
async def test_50_long_streams_may_be_read_one_after_the_other() -> None:
    counting = Counting(times=KEPT - 1)
    first, second = stream_of(counting, "a", "b")
    assert len(await all_of(first)) == len(await all_of(second)) == KEPT - 1
    assert now() == 0


@virtually
async def test_50_when_all_have_left_the_generator_is_closed_wherever_it_stands() -> None:
    counting = Counting(seconds=100)
    streams = stream_of(counting, "a", "b")
    readers = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(1)
    for reader in readers:
        reader.cancel()
    assert kinds(await outcomes(readers)) == [asyncio.CancelledError] * 2
    await turns()
    assert (counting.closed, now()) == (1, 1)
    assert await all_of(streams[0]) == []  # as with any generator: who is cancelled has left


@virtually
async def test_50_a_stream_that_is_left_while_it_is_read_ends() -> None:
    (stream,) = stream_of(Counting(seconds=100), "a")
    reading = asyncio.ensure_future(all_of(stream))
    await asyncio.sleep(1)
    await stream.aclose()
    assert await reading == []
    assert now() == 1


@virtually
async def test_50_a_stream_that_is_let_go_of_has_left() -> None:
    counting = Counting()
    streams = stream_of(counting, "a", "b")
    await anext(streams[0])
    streams.clear()
    gc.collect()
    await turns()
    assert counting.closed == 1
    assert len(asyncio.all_tasks()) == 1


@virtually
async def test_50_a_stream_that_is_left_before_its_batch_is_not_in_it() -> None:
    counting = Counting(times=1)
    streams = stream_of(counting, "a", "b")
    await streams[0].aclose()
    assert await all_of(streams[1]) == [(0, "b")]
    assert counting.batches == [["b"]]


@virtually
async def test_51_setters_work_while_a_batch_streams() -> None:
    counting = Counting(times=3)
    queue = BatchQueue(counting, max_batch_size=2, batch_wait_timeout_s=1000)
    first = [queue.stream(item) for item in range(2)]
    for stream in first:
        await anext(stream)
        await anext(stream)
    queue.set_max_batch_size(3)
    queue.set_batch_wait_timeout_s(15_000)
    second = [queue.stream(item) for item in range(3)]
    assert [await all_of(stream) for stream in first] == [[(2, 0)], [(2, 1)]]
    assert [len(await all_of(stream)) for stream in second] == [3, 3, 3]
    assert counting.batches == [[0, 1], [0, 1, 2]]
    assert now() == 0


@virtually
async def test_a_timeout_ends_a_stream_and_not_the_others() -> None:
    queue = BatchQueue(Counting(times=5, seconds=1))
    short, long = queue.stream("a", timeout=2.5), queue.stream("b")
    whole = asyncio.ensure_future(all_of(long))
    assert [await anext(short), await anext(short)] == [(0, "a"), (1, "a")]
    with pytest.raises(RequestTimeout, match=r"2\.5 s"):
        await anext(short)
    assert now() == 2.5
    assert len(await whole) == 5


@virtually
async def test_a_queue_that_is_closed_at_once_ends_its_streams() -> None:
    counting = Counting(seconds=1)
    queue = BatchQueue(counting)
    streams = [queue.stream(1), queue.stream(2)]
    assert await anext(streams[0]) == (0, 1)
    await queue.close(drain=False)
    assert kinds(await outcomes([all_of(stream) for stream in streams])) == [ClientClosed, ClientClosed]
    assert counting.closed == 1


@virtually
async def test_a_stream_behaves_like_a_generator() -> None:
    queue = BatchQueue(Counting())
    stream: Any = queue.stream(1)
    assert await stream.asend(None) == (0, 1)
    with pytest.raises(TypeError, match="nothing can be sent"):
        await stream.asend(3)
    with pytest.raises(KeyError):
        await stream.athrow(KeyError("x"))
    assert await all_of(stream) == []
    stream = BatchQueue(Counting(seconds=5)).stream(1)
    reading = asyncio.ensure_future(anext(stream))
    await turns()
    with pytest.raises(RuntimeError, match="another task"):
        await anext(stream)
    assert await reading == (0, 1)
    await stream.aclose()


@virtually
async def test_submit_and_stream_say_when_the_other_is_meant() -> None:
    async def function(items: list[int]) -> list[int]:
        return items

    with pytest.raises(TypeError, match="read stream"):
        await BatchQueue(Counting()).submit(1)
    with pytest.raises(TypeError, match="await submit"):
        BatchQueue(function).stream(1)
