"""Memory: a bulk of any length takes what is in flight, and no more; a reader that sleeps holds its server back.

The run over a million items is a benchmark.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest
from acceptance_tools import MODEL, in_flight, needs_proc, prompt, prompts, resident, until
from essays import FLOOD

from qreward import Endpoint, Limits, QRewardClient, StreamInterrupted
from qreward.scheduler.outcome import Answer
from qreward.testing import FakeEndpoint, FakeFleet, Latency

STREAMS = 40
MOST = 3_000_000
"""Bytes of memory that a stream with a sleeping reader may take: two reads of a transport and what is made of them. Its whole
answer has ten times as many, and its server would send it in half a second."""


class Said:
    usage = None

    def build(self) -> str:
        return "x"

    text = build


class EchoWire:
    """Answers at once, from memory."""

    async def send(self, endpoint: Any, call: Any) -> Answer:
        await asyncio.sleep(0)
        return Answer(Said())

    async def aclose(self) -> None:
        pass


@needs_proc
def test_a_bulk_of_a_hundred_thousand_items_takes_no_more_memory_than_a_tenth_of_it() -> None:
    count, samples = 100_000, []

    def on_result(result: Any) -> None:
        if result.index % 5000 == 0:
            samples.append(resident())

    async def run() -> Any:
        fleet = [Endpoint(f"http://{name}.example/v1", limits=Limits(max_concurrency=64)) for name in "abcd"]
        async with QRewardClient(fleet, backend_factory=EchoWire) as client:
            return await client.batch_chat_completion(map(prompt, range(count)), MODEL, on_result=on_result, keep_results=False)

    gc.collect()
    batch = asyncio.run(run())
    assert (batch.stats.ok, batch.stats.items, len(batch)) == (count, count, 0)
    assert max(samples[2:]) - samples[2] < 3_000_000  # kept, the results alone would be ten times that


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
async def test_streams_whose_readers_sleep_take_bounded_memory_and_go_on_when_they_wake() -> None:
    fleet = FakeFleet([FakeEndpoint("a", latency=Latency(tokens=10_000), responder="essays:flood")], process=True)
    async with fleet:
        many = Limits(max_concurrency=2 * STREAMS, adaptive=False)  # all at once: what sleeps holds its slot
        async with QRewardClient([Endpoint(fleet.urls["a"], name="a", proxy="", limits=many)], hedge=None) as client:
            await client.stream_chat_completion(prompt(0), MODEL).__aenter__()  # all is imported
            growth = Growth()
            streams = [client.stream_chat_completion(prompt(number), MODEL) for number in range(STREAMS)]
            readers = [aiter(stream) for stream in streams]
            first = await asyncio.gather(*map(anext, readers))
            await until(growth.has_ended)
            assert growth.bytes < MOST * STREAMS
            assert fleet.seen("a").answered == 0
            read = first[0]
            while len(read) < len(FLOOD) // 8:
                read += await anext(readers[0])
            assert FLOOD.startswith(read)
            await asyncio.gather(*(stream.aclose() for stream in streams))
            await until(lambda: in_flight(client) == fleet.seen("a").in_flight == 0)
            with pytest.raises(StreamInterrupted, match="left before"):
                await anext(readers[1])
            growth = Growth()
            batch = client.batch_stream_chat_completion(prompts(STREAMS), MODEL)
            reader = aiter(batch)
            await anext(reader)
            await until(growth.has_ended)
            assert growth.bytes < MOST * STREAMS
            assert fleet.seen("a").answered == 0
            texts = [""] * STREAMS
            while min(map(len, texts)) < len(FLOOD) // 80:  # all of them go on
                index, token = await anext(reader)
                texts[index] += token
            await batch.aclose()
            await until(lambda: fleet.seen("a").in_flight == 0)
