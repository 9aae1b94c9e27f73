"""Streams that nobody reads, or that are read too slowly, hold up neither the other callers nor the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from batching_tools import kinds, now, outcomes, turns, virtually
from hypothesis import given, settings
from hypothesis import strategies as st

from qreward.batching import BatchQueue, batch
from qreward.batching.streaming import AHEAD, KEPT
from qreward.errors import RequestTimeout


class Counting:
    """Yields (number, item) so many times; notes how far it came."""

    def __init__(self, times: int = 10**9) -> None:
        self.times = times
        self.yielded = 0
        self.closed = 0

    async def __call__(self, items: list[Any]) -> AsyncGenerator[list[Any], None]:
        try:
            for number in range(self.times):
                self.yielded = number + 1
                yield [(number, item) for item in items]
        finally:
            self.closed += 1


async def all_of(stream: Any) -> list[Any]:
    """All pieces, and the error that ended the stream."""
    found: list[Any] = []
    try:
        async for piece in stream:
            found.append(piece)
    except Exception as error:
        found.append(type(error))
    return found


@virtually
async def test_a_reader_that_is_cancelled_before_its_first_step_has_left() -> None:
    @batch(max_batch_size=2, batch_wait_timeout_s=1000)
    async def function(items: list[int]) -> Any:
        yield items

    left = [function(1), function(2)]  # held, as by a handler whose client is gone
    readers = [asyncio.create_task(stream.__anext__()) for stream in left]
    for reader in readers:
        reader.cancel()
    others = [function(3), function(4)]
    assert await asyncio.gather(*(anext(stream) for stream in others)) == [3, 4]
    assert kinds(await outcomes(readers)) == [asyncio.CancelledError] * 2
    assert [await all_of(stream) for stream in left] == [[], []]
    assert now() == 0


@virtually
async def test_a_short_stream_that_nobody_reads_frees_its_slot_at_once() -> None:
    queue = BatchQueue(Counting(times=AHEAD - 1))
    unread = queue.stream("a")
    await turns(AHEAD)
    assert len(await all_of(queue.stream("b"))) == AHEAD - 1
    await queue.close()
    assert now() == 0
    assert len(await all_of(unread)) == AHEAD - 1  # it is all there


@virtually
async def test_a_stream_that_nobody_reads_is_ended_and_the_others_are_served() -> None:
    counting = Counting()
    queue = BatchQueue(counting, stream_timeout=5)
    unread = [queue.stream("a"), queue.stream("b")]
    await turns()
    other = queue.stream("c")
    assert await anext(other) == (0, "c")
    assert (now(), counting.closed, queue.stats().expired) == (5, 1, 2)
    found = [await all_of(stream) for stream in unread]
    assert [(len(pieces), pieces[-1]) for pieces in found] == [(AHEAD + 1, RequestTimeout)] * 2
    assert [await all_of(stream) for stream in unread] == [[], []]
    await other.aclose()


@virtually
async def test_closing_does_not_wait_for_a_reader_longer_than_the_stream_timeout() -> None:
    queue = BatchQueue(Counting(), stream_timeout=5)
    unread = queue.stream("a")
    await turns()
    await queue.close()
    assert now() == 5
    assert (await all_of(unread))[-1] is RequestTimeout


@virtually
async def test_a_reader_that_is_far_behind_is_waited_for_and_then_ended_alone() -> None:
    counting = Counting(times=3 * KEPT)
    queue = BatchQueue(counting, stream_timeout=5)
    fast, slow = queue.stream("fast"), queue.stream("slow")
    assert len(await all_of(fast)) == 3 * KEPT
    assert (now(), queue.stats().expired) == (5, 1)
    pieces = await all_of(slow)
    assert (len(pieces), pieces[-2:]) == (KEPT + 1, [(KEPT - 1, "slow"), RequestTimeout])


@virtually
async def test_who_reads_slowly_is_not_ended_nor_is_who_does_not_read_meanwhile() -> None:
    queue = BatchQueue(Counting(times=3 * AHEAD), stream_timeout=5)
    slow, unread = queue.stream("slow"), queue.stream("unread")
    for number in range(3 * AHEAD):
        assert await anext(slow) == (number, "slow")
        await asyncio.sleep(4)
    assert await all_of(slow) == []
    assert len(await all_of(unread)) == 3 * AHEAD
    assert queue.stats().expired == 0


@virtually
async def test_without_a_stream_timeout_a_reader_is_waited_for() -> None:
    counting = Counting(times=2 * AHEAD)
    queue = BatchQueue(counting, stream_timeout=None)
    unread = queue.stream("a")
    await asyncio.sleep(100_000)
    assert counting.yielded == AHEAD
    assert len(await all_of(unread)) == 2 * AHEAD
    await queue.close()


@virtually
async def test_a_stream_that_is_left_while_its_batch_waits_for_it_lets_the_batch_go_on() -> None:
    queue = BatchQueue(Counting(times=2 * KEPT))
    fast, slow = queue.stream("fast"), queue.stream("slow")
    reading = asyncio.ensure_future(all_of(fast))
    await asyncio.sleep(1)
    assert not reading.done()
    await slow.aclose()
    assert len(await reading) == 2 * KEPT
    assert now() == 1


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


@settings(deadline=None, max_examples=60)
@given(readers=READERS, length=st.sampled_from([0, 2, 2 * AHEAD, 2 * KEPT]), size=st.integers(1, 4), slots=st.integers(1, 2))
@virtually
async def test_whatever_readers_do_pieces_come_in_order_and_closing_ends(
    readers: list[ReaderOf], length: int, size: int, slots: int
) -> None:
    held: list[Any] = []

    queue = BatchQueue(Counting(times=length), max_batch_size=size, max_concurrent_batches=slots, stream_timeout=5)

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
