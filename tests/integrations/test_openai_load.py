"""The SDK over our transport when there is much to do and things go wrong: nothing is lost, what is given up is stopped upstream."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import openai
import pytest
from openai_tools import LIBRARIES, MODEL, ask, fleet_and_client, quick, requests, sdk
from shared_tools import until

from qreward import Endpoint, QRewardClient, Retry, Timeouts
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, echo_of

pytestmark = pytest.mark.real_time


def faulty(name: str, seed: int) -> FakeEndpoint:
    """Turns away what comes over 8 at once, fails and hangs for a tenth of the rest."""
    faults = Faults(error_500=0.05, error_503=0.03, hang=0.02, seed=seed)
    return FakeEndpoint(name, latency=Latency(base=0.01, tokens=4), max_concurrency=8, faults=faults)


def client_of(fleet: FakeFleet) -> QRewardClient:
    """With enough attempts that the faults, which come in any order, lose one call in 10^12."""
    made = [Endpoint(url, name=name, proxy="", timeouts=Timeouts(attempt=2.0)) for name, url in fleet.urls.items()]
    return QRewardClient(made, retry=Retry(attempts=12, base=0.01))


async def text_of(ours: openai.AsyncOpenAI, number: int) -> str:
    """By a stream for each third."""
    if number % 3:
        return (await ours.chat.completions.create(model=MODEL, messages=ask(str(number)))).choices[0].message.content or ""
    stream = await ours.chat.completions.create(model=MODEL, messages=ask(str(number)), stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_every_call_of_120_succeeds_on_a_fleet_that_limits_fails_and_hangs() -> None:
    async with FakeFleet([faulty("a", 1), faulty("b", 2), faulty("c", 3)]) as fleet, client_of(fleet) as client:
        async with sdk(client) as ours:
            texts = await asyncio.gather(*(text_of(ours, number) for number in range(120)))
        assert texts == [echo_of(ask(str(number))) for number in range(120)]
        seen = [fleet.seen(name) for name in fleet.names]
        assert sum(sum(each.errors.values()) for each in seen) > 0
        assert sum(each.rejected for each in seen) > 0


async def test_a_call_that_is_cancelled_is_stopped_upstream() -> None:
    async with fleet_and_client(quick("a", faults=Faults(hang=1))) as (fleet, client), sdk(client) as ours:
        for count, stream in enumerate((False, True), start=1):
            call = asyncio.ensure_future(ours.chat.completions.create(model=MODEL, messages=ask(), stream=stream))
            await until(lambda count=count: requests(fleet) == count)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda count=count: fleet.seen("a").disconnects == count)
            assert requests(fleet) == count


async def read_into(read: list[Any], stream: Any) -> None:
    async for chunk in stream:
        read.append(chunk)


STALLS = quick("a", faults=Faults(stall=1))
"""An answer begins and does not end."""


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_stream_that_is_left_is_stopped_upstream(library: str) -> None:
    async with fleet_and_client(STALLS) as (fleet, client), sdk(client, library) as ours:
        for count, how in enumerate(("close", "break", "cancel"), start=1):
            stream: Any = await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True)
            if how == "cancel":
                read: list[Any] = []
                reading = asyncio.ensure_future(read_into(read, stream))
                await until(lambda read=read: read)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                del reading
            elif how == "break":
                async for _ in stream:
                    break
            else:
                await stream.close()
            del stream
            if how == "break":  # the SDK's generators refer to each other, and end in turn
                await until(lambda count=count: gc.collect() >= 0 and fleet.seen("a").disconnects == count)
            await until(lambda count=count: (fleet.seen("a").disconnects, fleet.seen("a").in_flight) == (count, 0))


def test_one_sdk_client_serves_one_loop_after_the_other() -> None:
    with FakeFleet([quick("a")]) as fleet:
        client = QRewardClient(fleet.endpoints)
        ours = sdk(client)

        async def call(number: int) -> str:
            return await text_of(ours, number)

        assert [asyncio.run(call(number)) for number in range(4)] == [echo_of(ask(str(number))) for number in range(4)]

        async def close() -> None:
            await ours.close()
            await client.aclose()

        asyncio.run(close())
