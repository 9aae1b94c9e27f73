"""Memory: a bulk of any length takes what is in flight, and no more. The run over a million items is a benchmark."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acceptance_tools import MODEL, needs_proc, prompt

from qreward import Endpoint, Limits, QRewardClient
from qreward.scheduler.outcome import Answer

PAGE = os.sysconf("SC_PAGE_SIZE")


class Said:
    usage = None

    def build(self) -> str:
        return "x"

    def text(self) -> str:
        return "x"


class EchoWire:
    """Answers at once, from memory."""

    async def send(self, endpoint: Any, call: Any) -> Answer:
        await asyncio.sleep(0)
        return Answer(Said())

    async def aclose(self) -> None:
        pass


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@needs_proc
def test_a_bulk_of_a_hundred_thousand_items_takes_no_more_memory_than_a_tenth_of_it() -> None:
    count, samples = 100_000, []

    def items() -> Iterator[Any]:
        for number in range(count):
            yield prompt(number)

    def on_result(result: Any) -> None:
        if result.index % 5000 == 0:
            samples.append(resident())

    async def run() -> Any:
        fleet = [Endpoint(f"http://{name}.example/v1", limits=Limits(max_concurrency=64)) for name in "abcd"]
        async with QRewardClient(fleet, backend_factory=EchoWire) as client:
            return await client.batch_chat_completion(items(), MODEL, on_result=on_result, keep_results=False)

    gc.collect()
    batch = asyncio.run(run())
    assert (batch.stats.ok, batch.stats.items, len(batch)) == (count, count, 0)
    assert len(samples) == 20
    assert max(samples[2:]) - samples[2] < 3_000_000  # kept, the results alone would be ten times that
