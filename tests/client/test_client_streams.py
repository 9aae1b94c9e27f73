"""Streams over real sockets: from the fake servers' events to the caller's loop, in the async client and in the blocking one."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client_tools import HI, MODEL
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from shared_tools import each, until

from qreward import (
    AuthenticationFailed,
    ConfigError,
    QRewardClient,
    Result,
    Stream,
    StreamInterrupted,
    SyncBatchStream,
    SyncQRewardClient,
    SyncStream,
)
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, echo_of

SLOW = Latency(per_token=0.02, tokens=500)
"""Ten seconds: nobody waits for its end."""
QUICK = Latency(per_token=0.001, tokens=8)


def chat(prompt: object) -> list[dict[str, str]]:
    return [{"role": "user", "content": str(prompt)}]


@asynccontextmanager
async def fleet_of(*fakes: FakeEndpoint) -> AsyncIterator[tuple[FakeFleet, QRewardClient]]:
    async with FakeFleet(fakes) as fleet, QRewardClient(fleet.endpoints) as client:
        yield fleet, client


def inflight(client: QRewardClient) -> int:
    return sum(source.inflight for source in client._runtime.fleet.sources())


async def test_a_stream_gives_texts_chunks_and_the_whole_completion_with_its_usage() -> None:
    async with fleet_of(FakeEndpoint("a", latency=QUICK)) as (fleet, client):
        stream = client.stream_chat_completion(HI, MODEL, temperature=0)
        assert type(stream) is Stream
        tokens = [token async for token in stream]
        assert len(tokens) > 1
        final = await stream.final()
        assert isinstance(final, ChatCompletion)
        assert final.choices[0].message.content == "".join(tokens) == echo_of(HI)
        assert final.usage is not None
        assert final.usage.completion_tokens == 8
        chunks = [chunk async for chunk in client.stream_chat_completion(HI, MODEL).chunks()]
        assert all(isinstance(chunk, ChatCompletionChunk) for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == echo_of(HI)
        assert client.stats()["a"].completion_tokens == 16
        assert fleet.seen("a").answered == 2


@each("fault", ["cut", "truncated", "error_in_200", "malformed"])
async def test_a_stream_that_breaks_off_is_an_error_with_its_text(fault: str) -> None:
    faults: dict[str, Any] = {fault: 1.0}
    sick = FakeEndpoint("a", latency=Latency(per_token=0.005, tokens=40), faults=Faults(**faults))
    async with fleet_of(sick) as (_, client):
        said: list[str] = []

        async def read() -> None:
            async for token in client.stream_chat_completion(HI * 5, MODEL):
                said.append(token)

        with pytest.raises(StreamInterrupted, match="broke off after") as caught:
            await read()
        assert said
        assert caught.value.text == "".join(said)
        assert echo_of(HI * 5).startswith(caught.value.text)
        assert len(caught.value.attempts) == 1
        assert inflight(client) == 0


@each("way", ["break", "cancel", "garbage"])
async def test_the_server_sees_at_once_that_its_reader_has_left(way: str) -> None:
    async with fleet_of(FakeEndpoint("a", latency=SLOW)) as (fleet, client):
        stream: Any = client.stream_chat_completion(HI, MODEL)
        if way == "break":
            async for _ in stream:
                break
        elif way == "cancel":
            reading = asyncio.ensure_future(stream.final())
            await until(lambda: stream.text)
            reading.cancel()
            await asyncio.wait([reading])
        else:
            await stream
            del stream
            gc.collect()
        await until(lambda: fleet.seen("a").disconnects == 1)
        assert inflight(client) == 0
        assert fleet.seen("a").in_flight == 0


async def test_an_error_is_raised_where_the_stream_is_read() -> None:
    async with fleet_of(FakeEndpoint("a", api_key="sk-other")) as (fleet, _):
        keyless = [each.model_copy(update={"api_key": None}) for each in fleet.endpoints]
        async with QRewardClient(keyless) as client:
            stream = client.stream_chat_completion(HI, MODEL)
            with pytest.raises(AuthenticationFailed):
                await stream
            with pytest.raises(AuthenticationFailed):
                await stream.final()
            batch = client.batch_stream_chat_completion([HI] * 3, MODEL)
            assert [event async for event in batch] == []
            assert {type(error) for error in (await batch.results()).errors.values()} == {AuthenticationFailed}


def test_a_stream_belongs_to_the_loop_in_which_it_was_begun() -> None:
    async def read() -> None:
        async with client:
            reader = aiter(stream)
            await anext(reader)
            with pytest.raises(RuntimeError, match="in the event loop that began it"):
                await asyncio.to_thread(asyncio.run, drain())

    async def drain() -> None:
        async for _ in stream:
            pass

    with FakeFleet([FakeEndpoint("a", latency=SLOW)]) as fleet:
        client = QRewardClient(fleet.endpoints)
        stream = client.stream_chat_completion(HI, MODEL)
        asyncio.run(read())


# the blocking client


def test_blocking_loops_read_the_same() -> None:
    with FakeFleet([FakeEndpoint("a", latency=QUICK)]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        stream = client.stream_chat_completion(HI, MODEL, temperature=0)
        assert type(stream) is SyncStream
        assert "".join(stream) == stream.text == echo_of(HI)
        assert stream.final().choices[0].message.content == echo_of(HI)
        assert stream.result is not None
        assert stream.result.endpoint == "a"
        assert all(isinstance(chunk, ChatCompletionChunk) for chunk in client.stream_chat_completion(HI, MODEL).chunks())
        assert "".join(map(str, client.stream_chat_completion(HI, MODEL, on_interrupt="restart").events())) == echo_of(HI)
        with client.stream_chat_completion(HI, MODEL) as other:
            assert other.final().usage is not None
        with pytest.raises(ConfigError, match=r"iterate events\(\)"):
            iter(client.stream_chat_completion(HI, MODEL, on_interrupt="restart"))


def test_a_blocking_loop_reads_a_batch() -> None:
    threads: set[str] = set()

    def lazily() -> Any:
        for number in range(50):
            threads.add(threading.current_thread().name)
            yield chat(number)

    with FakeFleet([FakeEndpoint("a", latency=QUICK)]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        stream = client.batch_stream_chat_completion(lazily(), MODEL, max_concurrent_streams=7)
        assert type(stream) is SyncBatchStream
        texts = [""] * 50
        for index, token in stream:
            texts[index] += token
        assert texts == [echo_of(chat(number)) for number in range(50)] == stream.results().texts()
        assert fleet.seen("a").peak_in_flight <= 7
        ends = [event for _, event in client.batch_stream_chat_completion([HI] * 3, MODEL).events() if isinstance(event, Result)]
        assert [result.text for result in ends] == [echo_of(HI)] * 3
        with client.batch_stream_chat_completion([HI] * 3, MODEL) as other:
            assert other.results().texts() == [echo_of(HI)] * 3
    assert threads == {"qreward-portal"}


@each("batch", [False, True])
def test_a_blocking_loop_that_is_left_closes_its_streams(batch: bool) -> None:
    with FakeFleet([FakeEndpoint("a", latency=SLOW)]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        stream: Any = client.batch_stream_chat_completion([HI] * 3, MODEL) if batch else client.stream_chat_completion(HI, MODEL)
        for _ in stream:
            break
        asyncio.run(until(lambda: fleet.seen("a").disconnects == (3 if batch else 1)))
        assert inflight(client._async) == 0
        with pytest.raises(StreamInterrupted, match="left before"):
            stream.results() if batch else stream.final()
        stream.close()
