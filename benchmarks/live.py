"""Cost of the live channel: CPU time per call without it, with it, and watched five times a second; and how long it takes to attach.

``python benchmarks/live.py`` (``--quick`` for a short run). Calls are answered at once by a backend in this process. Rounds alternate
between a client that is not shown and one that is. A second process watches, so its own CPU time does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from qreward import Endpoint, Limits, QRewardClient
from qreward.live import channel
from qreward.live.processes import VARIABLE, request
from qreward.scheduler.outcome import Answer

ENDPOINTS = 16
ANSWER = Answer(SimpleNamespace(usage=None), prompt_tokens=100, output_tokens=20)


class Backend:
    async def send(self, _endpoint: object, _call: object) -> Answer:
        await asyncio.sleep(0)
        return ANSWER

    async def aclose(self) -> None:
        """Hold nothing."""


def watch(path: Path, stop: Any, told: Any) -> None:
    """Read the state five times a second, as ``qreward top`` does."""
    told.put("ready")
    while not stop.wait(0.2):
        request(path, "GET", "/snapshot")


def attach(path: Path, stop: Any, told: Any) -> None:
    """Tell the milliseconds from the first byte of a new connection to the parsed state, again and again."""
    took = []
    told.put("ready")
    while not stop.wait(0.1):
        began = time.perf_counter()
        request(path, "GET", "/snapshot")
        took.append((time.perf_counter() - began) * 1000)
    told.put(took)


def new_client() -> QRewardClient:
    endpoints = [Endpoint(f"http://gpu-{number}:8000/v1", limits=Limits(max_concurrency=8, adaptive=False)) for number in range(ENDPOINTS)]
    return QRewardClient(endpoints, backend_factory=Backend, telemetry=None)


async def cpu_per_call(client: QRewardClient, calls: int) -> float:
    """Return the CPU time of a call in microseconds, all threads included."""
    chats = [[{"role": "user", "content": str(number)}] for number in range(calls)]
    began = time.process_time()
    batch = await client.batch_chat_completion(chats, model="judge")
    spent = time.process_time() - began
    assert batch.stats.ok == calls
    return spent / calls * 1e6


async def idle_share(seconds: float) -> float:
    """Return the share of a core that this process uses while its event loop is idle, in percent."""
    began = time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - began) / seconds * 100


@asynccontextmanager
async def other_process(work: Any, path: Path) -> AsyncIterator[Any]:
    context = multiprocessing.get_context("spawn")
    stop, told = context.Event(), context.Queue()
    process = context.Process(target=work, args=(path, stop, told))
    process.start()
    await asyncio.to_thread(told.get)
    yield told
    stop.set()
    await asyncio.to_thread(process.join)


async def attach_times(path: Path, work: Awaitable[object]) -> dict[str, float]:
    async with other_process(attach, path) as told:
        await work
    took = await asyncio.to_thread(told.get)
    return {"number": len(took), "median": statistics.median(took), "p95": statistics.quantiles(took, n=20)[-1], "longest": max(took)}


async def busy(client: QRewardClient, calls: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await cpu_per_call(client, calls)


async def measure(rounds: int, calls: int, seconds: float) -> dict[str, Any]:
    made: dict[str, list[float]] = {"without": [], "unwatched": []}
    async with new_client() as bare, new_client() as shown:
        opened = channel.open_channel()
        opened.add(shown._runtime)
        await cpu_per_call(bare, calls)
        for _ in range(rounds):
            made["without"].append(await cpu_per_call(bare, calls))
            made["unwatched"].append(await cpu_per_call(shown, calls))
        shares = {"unwatched": await idle_share(seconds)}
        async with other_process(watch, opened.path):
            shares["watched"] = await idle_share(seconds)
        times = {"idle": await attach_times(opened.path, asyncio.sleep(seconds))}
        times["busy"] = await attach_times(opened.path, busy(shown, calls, seconds))
        opened.close()
    return {
        "cpu_us": {name: statistics.median(found) for name, found in made.items()},
        "per_request_us": statistics.median(b - a for a, b in zip(made["without"], made["unwatched"], strict=True)),
        "core_percent": shares,
        "attach_ms": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qr-") as folder:
        os.environ[VARIABLE] = folder
        found = asyncio.run(measure(*((2, 2000, 1.0) if chosen.quick else (9, 10_000, 10.0))))
    print(json.dumps(found, indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
