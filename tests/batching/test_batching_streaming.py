"""Functions that yield: a stream for each caller, and streams that are read slowly or not at all hold up neither others nor the end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from batching_tools import Streaming, kinds, now, outcomes, turns, virtually
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE

from qreward.batching import BatchQueue, batch
from qreward.batching.in_flight import AHEAD, KEPT
from qreward.errors import ClientClosed, InvalidResponse, RequestTimeout


def stream_of(counting: Any, *items: Any, **settings: Any) -> list[Any]:
    queue = BatchQueue(counting, **settings)
    return [queue.stream(item) for item in items]


async def all_of(stream: Any) -> list[Any]:
    """All pieces, and the error that ended the stream."""
    found: list[Any] = []
    try:
        async for piece in stream:
            found.append(piece)
    except Exception as error:
        found.append(type(error))
    return found


async def test_each_caller_gets_an_async_generator_of_its_own_pieces() -> None:
    length = 0

    class C:
        @batch(max_batch_size=2, batch_wait_timeout_s=1000)
        async def method(self, key1: list[str], key2: list[str]) -> Any:
            for number in range(length):
                yield [(number, a, b) for a, b in zip(key1, key2, strict=True)]

    @batch(max_batch_size=2, batch_wait_timeout_s=1000)
    async def function(key1: list[str], key2: list[str]) -> Any:
        for number in range(length):
            yield [(number, a, b) for a, b in zip(key1, key2, strict=True)]

    for length in (0, 2, 5):
        for call in (C().method, function):
            streams: list[Any] = [call("a", "b"), call(key2="d", key1="c")]
            assert all(isinstance(stream, AsyncGenerator) for stream in streams)
            # submitted when called, and read one after the other
            assert await all_of(streams[0]) == [(number, "a", "b") for number in range(length)]
            assert await all_of(streams[1]) == [(number, "c", "d") for number in range(length)]
    assert now() == 0


async def test_a_list_of_another_length_is_an_error_at_that_step_and_then_the_end() -> None:
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


async def test_a_stop_or_an_exception_in_a_slot_ends_that_caller_and_no_other() -> None:
    for end, last in ((StopIteration, []), (StopAsyncIteration, []), (StopIteration(), []), (KeyError("x"), [KeyError])):

        async def function(items: list[int], end: Any = end) -> Any:
            for number in range(5):
                yield [end if number >= item else number for item in items]

        found = await asyncio.gather(*map(all_of, stream_of(function, 2, 0, 4, 9)))
        assert found == [[0, 1, *last], last, [0, 1, 2, 3, *last], [0, 1, 2, 3, 4]], end


async def test_callers_may_be_ended_one_after_the_other_and_read_so() -> None:
    go_on = asyncio.Event()

    async def function(items: list[int]) -> Any:
        for done in range(1, 5):
            go_on.clear()
            yield [StopIteration] * done + items[done:]
            await go_on.wait()

    for item, stream in enumerate(stream_of(function, 0, 1, 2, 3)):
        assert all(piece == item for piece in await all_of(stream))
        go_on.set()


async def test_an_exception_of_the_function_reaches_each_caller_after_what_came_before_it() -> None:
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


class Array:
    """Compares like an array: there is no truth in it."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


async def test_a_slot_may_hold_anything() -> None:
    pieces = [{"a": 1}, Array(), None, ValueError]

    async def function(items: list[int]) -> Any:
        yield pieces

    found = await asyncio.gather(*map(all_of, stream_of(function, 0, 1, 2, 3)))
    assert all(len(read) == 1 and read[0] is piece for read, piece in zip(found, pieces, strict=True))


async def test_a_slow_reader_is_waited_for_and_one_that_leaves_is_not() -> None:
    counting = Streaming()
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


async def test_when_all_have_left_the_generator_is_closed_wherever_it_stands() -> None:
    counting = Streaming(seconds=100)
    streams = stream_of(counting, "a", "b")
    cancelled, reading = asyncio.ensure_future(anext(streams[0])), asyncio.ensure_future(all_of(streams[1]))
    await asyncio.sleep(1)
    cancelled.cancel()
    assert kinds(await outcomes([cancelled])) == [asyncio.CancelledError]
    await turns()
    assert counting.closed == 0
    reading.cancel()
    assert kinds(await outcomes([reading])) == [asyncio.CancelledError]
    await turns()
    assert (counting.closed, now()) == (1, 1)
    assert await all_of(streams[0]) == []  # as with any generator: a reader that is cancelled has left


async def test_a_stream_that_is_garbage_has_left() -> None:
    counting = Streaming()
    streams = stream_of(counting, "a", "b")
    await anext(streams[0])
    streams.clear()
    gc.collect()
    await turns()
    assert counting.closed == 1
    assert len(asyncio.all_tasks()) == 1


async def test_a_timeout_ends_a_stream_and_not_the_others() -> None:
    queue = BatchQueue(Streaming(times=5, seconds=1))
    short, long = queue.stream("a", timeout=2.5), queue.stream("b")
    whole = asyncio.ensure_future(all_of(long))
    assert [await anext(short), await anext(short)] == [(0, "a"), (1, "a")]
    with pytest.raises(RequestTimeout, match=r"2\.5 s"):
        await anext(short)
    assert now() == 2.5
    assert len(await whole) == 5


async def test_a_queue_that_is_closed_at_once_ends_its_streams() -> None:
    counting = Streaming(seconds=1)
    queue = BatchQueue(counting)
    streams = [queue.stream(1), queue.stream(2)]
    assert await anext(streams[0]) == (0, 1)
    await queue.close(drain=False)
    assert [await all_of(stream) for stream in streams] == [[ClientClosed], [(0, 2), ClientClosed]]
    assert counting.closed == 1


async def test_a_stream_behaves_like_a_generator() -> None:
    queue = BatchQueue(Streaming())
    stream: Any = queue.stream(1)
    assert await stream.asend(None) == (0, 1)
    with pytest.raises(KeyError):
        await stream.athrow(KeyError("x"))
    assert await all_of(stream) == []
    stream = BatchQueue(Streaming(seconds=5)).stream(1)
    reading = asyncio.ensure_future(anext(stream))
    await turns()
    with pytest.raises(RuntimeError, match="already running"):
        await anext(stream)
    assert await reading == (0, 1)
    await stream.aclose()


async def test_submit_and_stream_say_when_the_other_is_meant() -> None:
    async def function(items: list[int]) -> list[int]:
        return items

    with pytest.raises(TypeError, match="read stream"):
        await BatchQueue(Streaming()).submit(1)
    with pytest.raises(TypeError, match="await submit"):
        BatchQueue(function).stream(1)


# readers that are slow or do not read


async def test_a_short_stream_that_is_not_read_frees_its_slot_at_once() -> None:
    queue = BatchQueue(Streaming(times=AHEAD - 1))
    unread = queue.stream("a")
    await turns(AHEAD)
    assert len(await all_of(queue.stream("b"))) == AHEAD - 1
    await queue.close()
    assert now() == 0
    assert len(await all_of(unread)) == AHEAD - 1  # it is all there


async def test_a_stream_that_is_not_read_is_ended_after_the_stream_timeout_so_that_others_are_served_and_the_queue_can_be_closed() -> None:
    counting = Streaming()
    queue = BatchQueue(counting, stream_timeout=5)
    unread = [queue.stream("a"), queue.stream("b")]
    await turns()
    other = queue.stream("c")
    assert await anext(other) == (0, "c")
    assert (now(), counting.closed, queue.stats().expired) == (5, 1, 2)
    found = [await all_of(stream) for stream in unread]
    assert [(len(pieces), pieces[-1]) for pieces in found] == [(AHEAD + 1, RequestTimeout)] * 2
    assert [await all_of(stream) for stream in unread] == [[], []]
    await queue.close()
    assert now() == 10
    assert (await all_of(other))[-1] is RequestTimeout


async def test_a_reader_that_is_far_behind_is_waited_for_and_then_ended_alone() -> None:
    counting = Streaming(times=3 * KEPT)
    queue = BatchQueue(counting, stream_timeout=5)
    fast, slow = queue.stream("fast"), queue.stream("slow")
    assert len(await all_of(fast)) == 3 * KEPT
    assert (now(), queue.stats().expired) == (5, 1)
    pieces = await all_of(slow)
    assert (len(pieces), pieces[-2:]) == (KEPT + 1, [(KEPT - 1, "slow"), RequestTimeout])


async def test_a_stream_that_is_read_slowly_is_not_ended_nor_is_one_that_is_not_read_meanwhile() -> None:
    queue = BatchQueue(Streaming(times=3 * AHEAD), stream_timeout=5)
    slow, unread = queue.stream("slow"), queue.stream("unread")
    for number in range(3 * AHEAD):
        assert await anext(slow) == (number, "slow")
        await asyncio.sleep(4)
    assert await all_of(slow) == []
    assert len(await all_of(unread)) == 3 * AHEAD
    assert queue.stats().expired == 0


async def test_without_a_stream_timeout_a_reader_is_waited_for() -> None:
    counting = Streaming(times=2 * AHEAD)
    queue = BatchQueue(counting, stream_timeout=None)
    unread = queue.stream("a")
    await asyncio.sleep(100_000)
    assert counting.yielded == AHEAD
    assert len(await all_of(unread)) == 2 * AHEAD
    await queue.close()


@dataclass(frozen=True)
class ReaderOf:
    """What a caller does with its stream: reads so many pieces, with a pause after each, and then leaves it or only stops reading."""

    at: int
    pieces: int
    pause: float
    leaves: bool
    cancelled: bool


READERS = st.lists(
    st.builds(
        ReaderOf,
        at=st.integers(0, 30),
        pieces=st.sampled_from([0, 1, AHEAD, 3 * AHEAD]),
        pause=st.sampled_from([0.0, 0.0, 0.5, 12.0]),
        leaves=st.booleans(),
        cancelled=st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40 * SCALE)
@given(readers=READERS, length=st.sampled_from([0, 2, 2 * AHEAD, 2 * KEPT]), size=st.integers(1, 4), slots=st.integers(1, 2))
@virtually
async def test_whatever_readers_do_pieces_come_in_order_and_closing_ends(
    readers: list[ReaderOf], length: int, size: int, slots: int
) -> None:
    held: list[Any] = []

    queue = BatchQueue(Streaming(times=length), max_batch_size=size, max_concurrent_batches=slots, stream_timeout=5)

    async def read(number: int, it: ReaderOf) -> list[Any]:
        await asyncio.sleep(it.at)
        stream = queue.stream(number)
        held.append(stream)
        if it.cancelled:
            task = asyncio.create_task(stream.__anext__())  # type: ignore[arg-type]
            task.cancel()
            await asyncio.wait([task])
            return []
        found: list[Any] = []
        try:
            async for piece in stream:
                found.append(piece)
                if len(found) >= it.pieces:
                    break
                await asyncio.sleep(it.pause)
        except RequestTimeout:
            return found
        if it.leaves:
            await stream.aclose()
        return found

    found = await asyncio.gather(*(read(number, it) for number, it in enumerate(readers)))
    ended = now()
    await queue.close()
    assert now() - ended <= 5 * len(readers) + 1
    for number, pieces in enumerate(found):
        assert pieces == [(at, number) for at in range(len(pieces))]
    stats = queue.stats()
    assert (stats.waiting, stats.in_flight) == (0, 0)
