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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from qreward import Endpoint, Limits, QRewardClient
from qreward.live import channel
from qreward.live.directory import VARIABLE, Kept, request
from qreward.scheduler.outcome import Answer

ENDPOINTS = 16
ANSWER = Answer(SimpleNamespace(usage=None), prompt_tokens=100, output_tokens=20)


class Backend:
    async def send(self, _endpoint: object, _call: object) -> Answer:
        await asyncio.sleep(0)
        return ANSWER

    async def aclose(self) -> None:
        """Hold nothing."""


def watch(path: Path, stop: Any, seconds: float) -> None:
    with Kept() as kept:  # as ``qreward top``
        while not stop.wait(seconds):
            request(path, "GET", "/snapshot", kept=kept)


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


async def measure(rounds: int, calls: int, seconds: float) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    made: dict[str, list[float]] = {"without": [], "unwatched": [], "watched": []}
    async with new_client() as bare, new_client() as shown:
        opened = channel.open_channel()
        opened.add(shown._runtime)
        await cpu_per_call(bare, calls)
        for _ in range(rounds):
            made["without"].append(await cpu_per_call(bare, calls))
            made["unwatched"].append(await cpu_per_call(shown, calls))
        shares = {"unwatched": await idle_share(seconds)}
        attach = []
        for _ in range(20):
            began = time.perf_counter()
            await asyncio.to_thread(request, opened.path, "GET", "/snapshot")
            attach.append((time.perf_counter() - began) * 1000)
        stop = context.Event()
        watcher = context.Process(target=watch, args=(opened.path, stop, 0.2))
        watcher.start()
        await asyncio.sleep(3.0)  # the process starts
        shares["watched"] = await idle_share(seconds)
        made["watched"] = [await cpu_per_call(shown, calls) for _ in range(rounds)]
        busy = asyncio.ensure_future(cpu_per_call(shown, 3 * calls))
        await asyncio.sleep(0.01)
        while not busy.done():
            began = time.perf_counter()
            await asyncio.to_thread(request, opened.path, "GET", "/snapshot")
            attach.append((time.perf_counter() - began) * 1000)
        stop.set()
        watcher.join()
    opened.close()
    return {
        "cpu_us": {name: statistics.median(found) for name, found in made.items()},
        "core_percent": shares,
        "per_request_us": statistics.median(b - a for a, b in zip(made["without"], made["unwatched"], strict=True)),
        "attach_ms": {"median": statistics.median(attach), "p95": statistics.quantiles(attach, n=20)[-1], "longest": max(attach)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qr-") as folder:
        os.environ[VARIABLE] = folder
        found = asyncio.run(measure(*((2, 2000, 0.5) if chosen.quick else (15, 20_000, 20.0))))
    print(json.dumps(found, indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
