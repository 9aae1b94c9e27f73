"""A batch of streams through the engine: one place for all, a lazy input, bounds, failures, and ways out. On virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from engine_tools import MODEL, broken, chat, chats, client_of, leftovers
from stream_wire import ENDS, StreamWire, heard, spoken, words

from qreward import BatchInterrupted, BatchResult, ClientClosed, ConfigError, Result, Retry, StreamInterrupted, StreamRestarted
from qreward.engine.streams import BATCH_AHEAD as AHEAD


def ask(client: Any, items: Any, **settings: Any) -> Any:
    return client.batch_stream_chat_completion(items, MODEL, **settings)


def by_index(events: list[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for index, what in events:
        found[index].append(what)
    return dict(found)


def lazily(count: int, read: list[int]) -> Iterator[Any]:
    for number in range(count):
        read.append(number)
        yield chat(number)


async def lazily_awaited(count: int, read: list[int]) -> AsyncIterator[Any]:
    for item in lazily(count, read):
        await asyncio.sleep(0)
        yield item


async def test_the_tokens_of_all_streams_come_as_they_arrive_each_streams_in_order() -> None:
    async with client_of(StreamWire(), {"a": 2, "b": 2}) as client:
        stream = ask(client, chats(10))
        reading = asyncio.ensure_future(heard(stream))
        await asyncio.sleep(0.5)
        sinks: list[Any] = list(client._runtime.engine.driver().waiters)
        seen = await reading
        assert [sink._streams for sink in sinks] == [{}], "the text of a stream that has ended is not kept"
        assert by_index(seen) == {number: ["re", ": ", str(number)] for number in range(10)}
        assert [token for _, token in seen[:4]] == ["re"] * 4
        batch = await stream.results()
        assert isinstance(batch, BatchResult)
        assert batch.texts() == [f"re: {number}" for number in range(10)]
        assert batch[3].usage is not None
        assert (batch.stats.ok, batch[3].usage.completion_tokens) == (10, 3)
        assert client.stats()["a"].won + client.stats()["b"].won == 10
        assert await heard(stream) == []
        for empty in (list[Any](), iter(list[Any]())):
            nothing = ask(client, empty)
            assert (await heard(nothing), len(await nothing.results())) == ([], 0)


@pytest.mark.parametrize("source", [lazily, lazily_awaited])
@pytest.mark.parametrize("most", [1, 3, 100])
async def test_no_more_streams_are_under_way_than_wanted_and_the_input_is_read_as_needed(source: Any, most: int) -> None:
    wire, read = StreamWire(), list[int]()
    async with client_of(wire, {"a": 5}) as client:
        stream = ask(client, source(200, read), max_concurrent_streams=most)
        done = 0
        async for _, event in stream.events():
            done += isinstance(event, Result)
            ended = 2 * min(most, 5)  # not yet taken, or to be replaced
            assert len(read) <= done + ended + (0 if most < 5 else 32)
        assert done == 200
        assert wire.peak["a"] == min(most, 5)
        assert (await stream.results()).texts() == [f"re: {number}" for number in range(200)]


async def test_on_result_is_called_with_each_result_as_in_other_batches() -> None:
    heard_of: list[int] = []
    async with client_of(StreamWire()) as client:
        stream = ask(client, chats(3), on_result=lambda result: heard_of.append(result.index))
        assert (await stream.results()).stats.ok == 3
    assert sorted(heard_of) == [0, 1, 2]


async def test_the_next_stream_begins_although_nobody_reads_just_now() -> None:
    wire = StreamWire()
    async with client_of(wire) as client:
        reader = aiter(ask(client, iter(chats(5)), max_concurrent_streams=1))
        await anext(reader)
        await asyncio.sleep(100)
        assert wire.prompts == ["0", "1", "2", "3", "4"]
        assert wire.peak["a"] == 1
        assert len(await heard(reader)) == 14


async def test_a_slow_consumer_stops_all_streams_and_the_input() -> None:
    wire, read = StreamWire(words(500, gap=0.0)), list[int]()
    async with client_of(wire, {"a": 8}) as client:
        stream = ask(client, lazily(10_000, read))
        reader = aiter(stream)
        await anext(reader)
        await asyncio.sleep(300)
        assert sum(wire.reads.values()) <= AHEAD + 2 * 8
        assert len(read) < 50
        for _ in range(1000):
            await anext(reader)
        await asyncio.sleep(300)
        assert sum(wire.reads.values()) <= 1001 + AHEAD + 4 * 8
        await stream.aclose()


async def test_one_that_fails_is_told_of_after_its_last_token_and_the_others_go_on() -> None:
    wire = StreamWire(lambda name, prompt: ["so far", 0.5, broken(name)] if prompt == "3" else spoken(name, prompt))
    told: list[Any] = []
    async with client_of(wire, {"a": 10}) as client:
        seen: list[Any] = []
        stream = ask(client, chats(6), on_stream_error=lambda index, error: told.append((index, error, len(seen))))
        async for index, token in stream:
            seen.append((index, token))
        ((index, error, when),) = told
        assert index == 3
        assert isinstance(error, StreamInterrupted)
        assert error.text == "so far"
        assert (3, "so far") in seen[:when]
        batch = await stream.results()
        assert batch.errors == {3: error}
        assert [result.ok for result in batch] == [number != 3 for number in range(6)]


async def test_an_error_of_on_stream_error_ends_the_loop_and_closes_all() -> None:
    def complain(index: int, error: Exception) -> None:
        raise KeyError(index)

    wire = StreamWire(lambda name, prompt: ["x", broken(name)] if prompt == "1" else ["x", 50.0])
    async with client_of(wire, {"a": 10}) as client:
        with pytest.raises(KeyError):
            await heard(ask(client, chats(4), on_stream_error=complain))
        await asyncio.sleep(0.001)
        assert sorted(wire.cancelled) == ["0", "2", "3"]


async def test_results_alone_drain_also_what_a_slow_consumer_had_stopped_and_tell_of_errors() -> None:
    for reads in (False, True):
        told: list[int] = []
        wire = StreamWire(lambda name, prompt: ["x", broken(name)] if prompt == "1" else words(500, gap=0.0)(name, prompt))
        async with client_of(wire, {"a": 10}) as client:
            stream = ask(client, chats(8), on_stream_error=lambda index, _, told=told: told.append(index))
            if reads:
                reader = aiter(stream)
                await anext(reader)
                await asyncio.sleep(300)
                assert sum(wire.reads.values()) <= AHEAD + 2 * 8
            batch = await asyncio.wait_for(stream.results(), 100)
            assert (batch.stats.ok, batch.stats.failed, told) == (7, 1, [1]), reads
            assert await stream.results() is batch


async def test_events_tell_the_result_of_each_stream_after_its_tokens_and_which_stream_restarts() -> None:
    wire = StreamWire()

    def script(name: str, prompt: str) -> Any:
        again = wire.prompts.count(prompt) > 1
        if prompt == "3":
            return ["begun again" if again else "begun", 0.5, broken(name)]
        return spoken(name, prompt) if again or prompt != "1" else ["half", 0.5, broken(name)]

    wire._steps = script
    async with client_of(wire, {"a": 2, "b": 2}, retry=Retry(attempts=2)) as client:
        with pytest.raises(ConfigError, match=r"iterate events\(\)"):
            aiter(ask(client, chats(3), on_interrupt="restart"))
        stream = ask(client, [*chats(4), "not a conversation"], on_interrupt="restart")
        events = by_index(await heard(stream.events()))
        for number in (0, 2):
            *tokens, whole = events[number]
            assert (tokens, whole.ok, whole.text) == (["re", ": ", str(number)], True, f"re: {number}")
        (bad,) = events[4]
        assert bad.error is not None
        assert events[3][-1].error.text == "begun again", "the text of the last attempt alone"
        half, event, *rest, result = events[1]
        assert (half, rest, result.text) == ("half", ["re", ": ", "1"], "re: 1")
        assert isinstance(event, StreamRestarted)
        assert event.text == "half"


async def by_break(stream: Any) -> None:
    async for _ in stream:
        break


async def by_aclose(stream: Any) -> None:
    async with stream:
        await anext(aiter(stream))


async def by_cancel(stream: Any) -> None:
    reading = asyncio.ensure_future(heard(stream))
    await asyncio.sleep(1.5)
    reading.cancel()
    await asyncio.wait([reading])


async def by_cancelled_results(stream: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.results(), 1.5)


@pytest.mark.parametrize("way", [by_break, by_aclose, by_cancel, by_cancelled_results], ids=lambda way: way.__name__)
@pytest.mark.parametrize("source", [lazily, lazily_awaited])
async def test_leaving_early_closes_every_stream_and_the_input(way: Any, source: Any) -> None:
    wire, read = StreamWire(), list[int]()
    async with client_of(wire, {"a": 5}) as client:
        items = source(1000, read)
        stream = ask(client, items)
        await way(stream)
        await asyncio.sleep(0.001)
        assert sorted(wire.cancelled) == ["0", "1", "2", "3", "4"]
        assert getattr(items, "gi_frame", None) is getattr(items, "ag_frame", None) is None
        with pytest.raises(StreamInterrupted, match="left before"):
            await heard(stream)
        with pytest.raises(StreamInterrupted, match="left before"):
            await stream.results()


async def test_a_batch_that_is_let_go_of_is_closed() -> None:
    wire = StreamWire()
    async with client_of(wire, {"a": 2}) as client:
        stream = ask(client, chats(9))
        async with asyncio.timeout(None):
            reader = aiter(stream)
            await anext(reader)
        with client._runtime.engine.lock:
            del stream, reader
            gc.collect()
        await asyncio.sleep(0.001)
        assert len(wire.cancelled) == 2


async def test_closing_the_client_ends_all_streams_with_what_is_done() -> None:
    wire = StreamWire()
    client = client_of(wire, {"a": 2})
    stream = ask(client, chats(6))
    reading = asyncio.ensure_future(heard(stream))
    await asyncio.sleep(4.5)
    await client.aclose()
    assert len(await reading) == 8
    batch = await stream.results()
    assert [result.ok for result in batch] == [True, True, False, False, False, False]
    assert all(isinstance(error, ClientClosed) for error in batch.errors.values())
    assert leftovers(client) == {}


async def test_an_input_that_raises_is_told_after_all_that_came() -> None:
    def broken_input() -> Iterator[Any]:
        yield from chats(3)
        raise KeyError("mine")

    async with client_of(StreamWire()) as client:
        stream = ask(client, broken_input())
        seen: list[Any] = []
        with pytest.raises(BatchInterrupted) as caught:
            await heard(stream, seen)
        assert len(seen) == 9
        assert caught.value.results is not None
        assert caught.value.results.texts() == ["re: 0", "re: 1", "re: 2"]
        with pytest.raises(BatchInterrupted):
            await stream.results()
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        unread = ask(client, broken_input())
        async with unread:
            await asyncio.sleep(10)
        del unread
        gc.collect()
        assert reported == [], "the error of an input is not reported as forgotten"


async def test_many_items_that_cannot_be_sent_do_not_pile_up() -> None:
    read: list[int] = []

    def wrong() -> Iterator[Any]:
        for number in range(5000):
            read.append(number)
            yield "not a conversation"

    async with client_of(StreamWire()) as client:
        reader = aiter(ask(client, wrong()).events())
        await anext(reader)
        await asyncio.sleep(1)
        assert len(read) <= AHEAD + 1
        assert len(await heard(reader)) == 4999


async def test_answers_that_have_ended_count_although_their_streams_stay_open_also_at_the_deadline_and_when_the_client_is_closed() -> None:
    def script(_: str, prompt: str) -> list[Any]:
        return [1.0, "re: ", prompt, 1000.0 if prompt == "2" else ENDS, 1000.0]

    for deadline in (100.0, 1.5, None):
        client = client_of(StreamWire(script), {"a": 8}, retry=Retry(attempts=1), timeout=None)
        stream = ask(client, chats(4), deadline=deadline)
        waiting = asyncio.ensure_future(stream.results())
        if deadline is None:
            await asyncio.sleep(1.5)
            await client.aclose()
        batch = await waiting
        assert batch.texts() == ["re: 0", "re: 1", None, "re: 3"], deadline
        assert list(batch.errors) == [2], deadline
        await client.aclose()
        assert leftovers(client) == {}
