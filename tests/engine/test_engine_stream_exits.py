"""Every way out of a stream: left, cancelled, let go of, closed, or its loop ended. Nothing stays behind. On virtual time."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterable
from typing import Any

import pytest
from engine_tools import broken, client_of, leftovers, now
from stream_wire import Step, StreamWire, ask, heard

from qreward import ClientClosed, StreamInterrupted


async def leave_by_break(stream: Any) -> None:
    async for _ in stream:
        break


async def leave_by_error(stream: Any) -> None:
    async def fail() -> None:
        async for token in stream:
            raise KeyError(token)

    with pytest.raises(KeyError):
        await fail()


async def leave_by_aclose(stream: Any) -> None:
    await anext(stream.chunks())
    await stream.aclose()
    await stream.aclose()


async def leave_by_with(stream: Any) -> None:
    async with stream:
        await stream


async def leave_by_cancel(stream: Any) -> None:
    reading = asyncio.ensure_future(heard(stream))
    await asyncio.sleep(1.5)
    reading.cancel()
    await asyncio.wait([reading])


async def leave_by_cancelled_final(stream: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.final(), 1.5)


async def after(seconds: float, what: Any) -> Any:
    await asyncio.sleep(seconds)
    return await what


WAYS_OUT = [leave_by_break, leave_by_error, leave_by_aclose, leave_by_with, leave_by_cancel, leave_by_cancelled_final]


@pytest.mark.parametrize("way", WAYS_OUT, ids=lambda way: way.__name__)
async def test_leaving_early_closes_the_request_and_frees_its_slot(way: Any) -> None:
    wire = StreamWire()
    async with client_of(wire, {"a": 1}) as client:
        stream = ask(client, 0)
        other = asyncio.ensure_future(after(0.1, ask(client, 1).final()))
        await way(stream)
        await asyncio.sleep(0.001)
        assert wire.cancelled == ["0"]
        assert now() < 2
        assert wire.prompts == ["0", "1"]
        assert stream.result is None
        with pytest.raises(StreamInterrupted, match="left before its end") as caught:
            await heard(stream)
        assert caught.value.text == "re"
        with pytest.raises(StreamInterrupted, match="left before its end"):
            await stream.final()
        assert await other == "re: 1"
        assert client.stats()["a"].cancelled == 1


async def test_a_stream_that_is_let_go_of_is_closed() -> None:
    wire = StreamWire()
    async with client_of(wire, {"a": 1}) as client:
        stream = await ask(client)
        assert leftovers(client) != {}
        with client._runtime.engine.lock:  # as the garbage collector may do amid our own work
            del stream
            gc.collect()
        await asyncio.sleep(0.001)
        assert wire.cancelled == ["hi"]
        assert leftovers(client) == {}
        ask(client)


async def test_text_that_arrived_unread_is_dropped_when_the_stream_is_closed() -> None:
    async with client_of(StreamWire(), {"a": 1}) as client:
        reader = aiter(stream := ask(client))
        assert await anext(reader) == "re"
        await asyncio.sleep(1.5)
        await stream.aclose()
        with pytest.raises(StreamInterrupted, match="left before its end"):
            await anext(reader)


async def test_a_loop_that_is_thrown_away_is_left_later() -> None:
    wire = StreamWire()
    async with client_of(wire, {"a": 1}) as client:
        reading = heard(ask(client))
        reading.send(None)
        await asyncio.sleep(0.5)
        with client._runtime.engine.lock:
            reading.close()
        await asyncio.sleep(0.001)
        assert wire.cancelled == ["hi"]


async def test_a_stream_that_waits_for_room_can_be_left() -> None:
    wire = StreamWire()
    async with client_of(wire, {"a": 1}) as client:
        first = asyncio.ensure_future(ask(client, 0).final())
        await asyncio.sleep(0)
        async with ask(client, 1):
            pass
        assert await first == "re: 0"
        assert wire.prompts == ["0"]


async def test_a_stream_that_was_closed_before_it_began_is_never_sent() -> None:
    wire = StreamWire()
    async with client_of(wire) as client:
        stream = ask(client)
        await stream.aclose()
        with pytest.raises(StreamInterrupted, match="left before"):
            await stream.final()
    assert wire.sent == []


async def test_closing_the_client_ends_a_stream_after_what_has_come() -> None:
    wire = StreamWire()
    client = client_of(wire, {"a": 1})
    begun, waiting = ask(client, 0), ask(client, 1)
    reader = aiter(begun)
    assert await anext(reader) == "re"
    queued = asyncio.ensure_future(waiting.final())
    await asyncio.sleep(1.5)
    await client.aclose()
    assert await anext(reader) == ": "
    with pytest.raises(ClientClosed):
        await anext(reader)
    with pytest.raises(ClientClosed):
        await queued
    with pytest.raises(ClientClosed):
        await ask(client).final()
    assert wire.cancelled == ["0"]
    assert leftovers(client) == {}


async def test_nothing_is_left_after_hundreds_of_random_streams_and_ways_out() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def erratic(name: str, _: str) -> Iterable[Step]:
        yield rng.choice([0.0, 0.01, 0.3, 5.0])
        if rng.random() < 0.1:
            yield broken(name)
        for number in range(rng.randrange(200)):
            yield f"{number} "
            yield rng.choice([0.0, 0.0, 0.01])
            if rng.random() < 0.001:
                yield broken(name)

    async def use(client: Any, number: int) -> str:
        await asyncio.sleep(rng.uniform(0, 20))
        stream = ask(client, number, timeout=rng.choice([None, 0.3, 5]), on_interrupt=rng.choice(["raise", "restart"]))
        reading: asyncio.Future[Any] = asyncio.ensure_future(rng.choice([lambda: heard(stream.events()), stream.final, stream._begun])())
        if rng.random() < 0.3:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(rng.choice([0, 0, 0, 0.01, 0.3]))
            reading.cancel()
        outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
        await stream.aclose()
        return type(outcome).__name__

    wire = StreamWire(erratic)
    limits = {"a": 10, "b": 3, "c": 30}
    async with client_of(wire, limits) as client:
        outcomes = await asyncio.gather(*(use(client, number) for number in range(400)))
        await asyncio.sleep(1)
        assert leftovers(client) == {}
        assert wire.live.total() == 0
        assert all(wire.peak[name] <= limit for name, limit in limits.items())
    assert set(outcomes) - {"ServerError", "CancelledError"} == {"list", "str", "Stream", "RequestTimeout", "StreamInterrupted"}, seed
