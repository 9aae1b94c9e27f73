"""Readers that sleep: the servers are held back, and what waits for the readers does not grow with what the servers would say."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from acceptance_tools import MODEL, in_flight, needs_proc, prompt, prompts, until
from essays import FLOOD
from test_acceptance_memory import resident

from qreward import Endpoint, Limits, QRewardClient, StreamInterrupted
from qreward.testing import FakeEndpoint, FakeFleet, Latency

STREAMS = 40
MOST = 3_000_000
"""Bytes of memory that a stream with a sleeping reader may take: two reads of a transport and what is made of them. Its whole
answer has ten times as many, and its server would send it in half a second."""


def talkative() -> FakeFleet:
    return FakeFleet([FakeEndpoint("a", latency=Latency(tokens=10_000), responder="essays:flood")], process=True)


def endpoint_of(fleet: FakeFleet) -> Endpoint:
    """One that takes all streams at once: what sleeps holds its slot."""
    return Endpoint(fleet.urls["a"], name="a", proxy="", limits=Limits(max_concurrency=2 * STREAMS, adaptive=False))


class Growth:
    """How much memory this process has taken since, once it takes no more."""

    def __init__(self) -> None:
        gc.collect()
        self._before = resident()
        self._samples: list[int] = []

    def has_ended(self) -> bool:
        time.sleep(0.02)  # a look that costs nothing would see nothing change
        self._samples.append(resident())
        return len(self._samples) > 20 and len(set(self._samples[-20:])) == 1

    @property
    def bytes(self) -> int:
        return self._samples[-1] - self._before


@needs_proc
async def test_single_streams_whose_readers_sleep_take_bounded_memory_and_go_on_when_they_wake() -> None:
    fleet = talkative()
    async with fleet, QRewardClient([endpoint_of(fleet)], hedge=None) as client:
        await client.stream_chat_completion(prompt(0), MODEL).__aenter__()  # all is imported
        growth = Growth()
        streams = [client.stream_chat_completion(prompt(number), MODEL) for number in range(STREAMS)]
        readers = [aiter(stream) for stream in streams]
        first = await asyncio.gather(*map(anext, readers))
        await until(growth.has_ended)
        assert growth.bytes < MOST * STREAMS
        assert fleet.seen("a").answered == 0
        await until(lambda: fleet.seen("a").in_flight == STREAMS)
        read = first[0]
        while len(read) < len(FLOOD) // 8:
            read += await anext(readers[0])
        assert FLOOD.startswith(read)
        await asyncio.gather(*(stream.aclose() for stream in streams))
        await until(lambda: in_flight(client) == 0)
        await until(lambda: fleet.seen("a").in_flight == 0)
        with pytest.raises(StreamInterrupted, match="left before"):
            await anext(readers[1])


@needs_proc
async def test_a_batch_of_streams_whose_reader_sleeps_takes_bounded_memory_and_goes_on_when_it_wakes() -> None:
    fleet = talkative()
    async with fleet, QRewardClient([endpoint_of(fleet)], hedge=None) as client:
        growth = Growth()
        stream = client.batch_stream_chat_completion(prompts(STREAMS), MODEL)
        reader = aiter(stream)
        await anext(reader)
        await until(growth.has_ended)
        assert growth.bytes < MOST * STREAMS
        assert fleet.seen("a").answered == 0
        texts = [""] * STREAMS
        while min(map(len, texts)) < len(FLOOD) // 80:  # all of them go on
            index, token = await anext(reader)
            texts[index] += token
        await stream.aclose()
        await until(lambda: fleet.seen("a").in_flight == 0)
