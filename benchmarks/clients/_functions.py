"""The measurements of the decorator benchmark: CPU time of calls of a function that does nothing, and memory of keys.

This module imports only the standard library, so that it runs in the environment of any library. The script of each library decorates the
function and calls ``main``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

WARM_UP = 500
KEY_WINDOW = 0.2
"""Seconds of the window of each key's rate limit while memory is measured."""


async def nothing(number: int) -> int:
    """Do nothing: the async function that is decorated."""
    return number


def nothing_blocking(number: int) -> int:
    """Do nothing: the blocking function that is decorated."""
    return number


async def one_after_another(function: Callable[[int], Awaitable[int]], calls: int) -> float:
    """Make calls one after the other, and return the CPU microseconds per call."""
    for number in range(WARM_UP):
        await function(number)
    gc.collect()
    begin = time.process_time()
    for number in range(calls):
        if await function(number) != number:
            raise SystemExit("a wrong result")
    return (time.process_time() - begin) / calls * 1e6


def one_after_another_blocking(function: Callable[[int], int], calls: int) -> float:
    """Make calls one after the other, and return the CPU microseconds per call, of all threads."""
    for number in range(WARM_UP):
        function(number)
    gc.collect()
    begin = time.process_time()
    for number in range(calls):
        if function(number) != number:
            raise SystemExit("a wrong result")
    return (time.process_time() - begin) / calls * 1e6


async def by_keys(function: Callable[[int], Awaitable[int]], keys: int) -> dict[str, float]:
    """Measure the memory of keys in MB: of objects right after one call of each key, and of objects later.

    *Later* means: the windows of the keys are over, and more calls have followed, one for each thousand keys. The function also measures
    the growth of the process in this first pass, and in a second pass. The allocator may keep a part of the memory of the first pass.
    """
    await function(-1)
    gc.collect()
    resident = [_megabytes()]
    for _ in range(2):
        for number in range(keys):
            await function(number)
        await asyncio.sleep(2 * KEY_WINDOW)
        await function(-1)
        gc.collect()
        resident.append(_megabytes())
    tracemalloc.start()
    for number in range(keys):
        await function(number)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    await asyncio.sleep(2 * KEY_WINDOW)
    for _ in range(keys // 1000):
        await function(-1)
    gc.collect()
    idle, _ = tracemalloc.get_traced_memory()
    growth = {"rss_first": resident[1] - resident[0], "rss_second": resident[2] - resident[1]}
    return {"mb_held": held / 1e6, "mb_after_idling": idle / 1e6, **growth}


def main(cases: dict[str, Callable[[int], Any]]) -> None:
    """Measure one case, a function of the number of calls, and print one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=cases, required=True)
    parser.add_argument("--calls", type=int, required=True)
    args = parser.parse_args()
    found = cases[args.case](args.calls)
    print(json.dumps({"us": found} if isinstance(found, float) else found))


def _megabytes() -> float:
    """Return the resident memory in MB, including freed memory that the allocator keeps."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096 / 1e6
