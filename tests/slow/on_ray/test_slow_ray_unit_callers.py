"""What ``@serve.batch`` promises of streams, arguments and callers that leave, asked of Ray's decorator and of ours in the same words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batch_tools import LONG, MODES, PAIRS, at_once, ends, first, pairs, read, unfinished

pytestmark = [pytest.mark.timeout(120), pytest.mark.real_time(60), pytest.mark.filterwarnings("ignore")]  # what Ray warns of is not ours


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
async def test_each_way_of_passing_arguments_gives_each_caller_the_results_of_its_own(batch: Any) -> None:
    for pieces in (0, 2, 5):
        for form, call in pairs(batch, at_once, pieces).items():
            for mode, passed in MODES.items():
                calls = [passed(call, *pair) for pair in PAIRS]
                if "generator" in form:
                    expected: list[Any] = [[(number, *pair) for number in range(pieces)] for pair in PAIRS]
                    found = [await read(stream) for stream in calls]  # one after the other: the first reader has the batch made
                else:
                    expected, found = [[pair] for pair in PAIRS], list(await asyncio.gather(*map(read, calls)))
                assert found == expected, (form, mode, pieces)


@ends
async def test_a_batch_whose_callers_leave_one_after_the_other_lets_the_next_run(batch: Any) -> None:
    free, passed = asyncio.Event(), 0

    async def held() -> None:
        nonlocal passed
        await free.wait()
        passed += 1

    for form, call in pairs(batch, held).items():
        free.clear()
        before, calls = passed, [first(call(*pair)) for pair in PAIRS]
        assert await unfinished(*calls, within=0.02) == 2
        for at, left in ((0, 1), (1, 0)):
            calls[at].cancel()
            assert await unfinished(*calls, within=0.02) == left, form
        assert passed == before, f"{form}: no batch has passed the point at which it was held"
        free.set()
        again = await asyncio.wait_for(asyncio.gather(*(first(call(*pair)) for pair in PAIRS)), 5)
        assert [piece[-2:] for piece in again] == list(PAIRS), form


@ends
async def test_callers_that_leave_a_batch_at_its_start_or_after_its_error_do_no_harm_to_the_next(batch: Any) -> None:
    failing = True

    async def fail() -> None:
        if failing:
            raise ValueError("fails")

    for error_first in (False, True):
        for form, call in pairs(batch, fail).items():
            failing = True
            calls = [first(call(*pair)) for pair in PAIRS]
            if error_first:
                assert [str(error) for error in await asyncio.gather(*calls, return_exceptions=True)] == ["fails", "fails"], form
            for one in calls:
                one.cancel()
            failing = False
            again = await asyncio.wait_for(asyncio.gather(*(first(call(*pair)) for pair in PAIRS)), 5)
            assert [piece[-2:] for piece in again] == list(PAIRS), form


@ends
async def test_a_generator_that_waits_for_its_reader_ends_its_callers_one_after_the_other(batch: Any) -> None:
    for stop in (StopAsyncIteration, StopIteration):
        event = asyncio.Event()

        @batch(max_batch_size=4, batch_wait_timeout_s=LONG)
        async def ending(items: list[int], stop: Any = stop, event: asyncio.Event = event) -> Any:
            for ended in range(1, 5):
                event.clear()
                yield [stop if at < ended else item for at, item in enumerate(items)]
                await event.wait()

        for item, stream in enumerate([ending(item) for item in range(4)]):
            assert {piece async for piece in stream} <= {item}
            event.set()


@ends
async def test_setters_count_for_the_next_streams_and_let_the_present_ones_go_on(batch: Any) -> None:
    call = pairs(batch, at_once, 3)["generator"]
    streams = [call(*pair) for pair in PAIRS]
    assert [[await anext(stream) for _ in range(2)] for stream in streams] == [[(number, *pair) for number in range(2)] for pair in PAIRS]
    call.set_max_batch_size(3)
    call.set_batch_wait_timeout_s(2 * LONG)
    assert (call._get_max_batch_size(), call._get_batch_wait_timeout_s()) == (3, 2 * LONG)
    later = (*PAIRS, ("e", "f"))
    new = [call(*pair) for pair in later]
    assert [await read(stream) for stream in streams] == [[(2, *pair)] for pair in PAIRS]
    assert [await asyncio.wait_for(read(stream), 5) for stream in new] == [[(number, *pair) for number in range(3)] for pair in later]
