"""What the clients of the real servers share: read the job, send its rounds one after another, print what came of them.

A job is a file of JSON: ``urls``, ``key``, ``model``, ``rounds`` (lists of ``[messages, max_tokens]``), ``width`` (calls in flight at once,
over all servers) and ``settings``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Call = Callable[[int, list[dict[str, str]], int], Awaitable[bool]]
"""Sends the call of this number, and returns whether it succeeded."""


async def rounds(job: Job, call: Call) -> dict[str, Any]:
    """Send the rounds as single calls, ``width`` at once, and return the time of the whole and the latency of each call."""
    places, latencies, failed = asyncio.Semaphore(job["width"]), [], 0

    async def one(number: int, messages: list[dict[str, str]], length: int) -> None:
        nonlocal failed
        async with places:
            begin = time.perf_counter()
            failed += not await call(number, messages, length)
            latencies.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    for work in job["rounds"]:
        await asyncio.gather(*(one(number, *each) for number, each in enumerate(work)))
    return {"wall_s": time.perf_counter() - begin, "failed": failed, "latencies": latencies}


def main(send: Callable[[Job], Awaitable[dict[str, Any]]]) -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    began = time.process_time()
    done = asyncio.run(send(job))  # type: ignore[arg-type]
    print(json.dumps(done | {"cpu_s": time.process_time() - began}))
