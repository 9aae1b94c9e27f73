"""The measurements of the batching benchmark. The script of each queue makes its queue and calls ``main``.

This module imports only the standard library, so that it runs in the environment of any library. A job is a JSON object with ``case``, the
settings of the queue (``max_batch``, ``slots``, ``wait``), and the arguments of the case.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from batching_virtual_time import run as run_in_virtual_time

Job = dict[str, Any]
Body = Callable[[list[Any]], Coroutine[Any, Any, list[Any]]]
"""A batch function."""
Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end, as ``asyncio.run`` does."""
WARM_UP = 20  # calls of each caller
START = 1.0
"""Seconds after the first arrival in which an adaptive queue has no estimates yet. ``p99_later`` leaves out the calls of this time."""


async def nothing() -> None:
    """Do nothing: this closes a queue that needs no closing."""


class Queue(NamedTuple):
    """A queue of some library: a function that submits one item, and a function that closes the queue."""

    call: Callable[[Any], Awaitable[Any]]
    close: Callable[[], Awaitable[object]] = nothing


Opens = Callable[[Body, Job], Queue]


async def plus_one(numbers: list[int]) -> list[int]:
    """Return each item plus one: a batch function that costs hardly anything itself."""
    return [number + 1 for number in numbers]


# CPU time


async def closed_loop(opens: Opens, job: Job) -> dict[str, float]:
    """Return the CPU microseconds per call, of all threads. Each of ``callers`` makes its next call when its last call is answered."""
    queue, callers = opens(plus_one, job), job["callers"]
    each = job["calls"] // callers
    await asyncio.gather(*(_caller(queue, WARM_UP) for _ in range(callers)))
    gc.collect()
    begin = time.process_time()
    await asyncio.gather(*(_caller(queue, each) for _ in range(callers)))
    spent = time.process_time() - begin
    await queue.close()
    return {"us": spent / (each * callers) * 1e6}


async def _caller(queue: Queue, calls: int) -> None:
    call = queue.call
    for number in range(calls):
        if await call(number) != number + 1:
            raise SystemExit("a wrong result")


async def flood(opens: Opens, job: Job) -> dict[str, float]:
    """Return the CPU microseconds per call if all ``calls`` are made at once, each in a new task. The cost of the tasks is included."""
    queue, calls = opens(plus_one, job), job["calls"]
    await asyncio.gather(*map(_task(queue), range(calls // 10)))
    gc.collect()
    begin = time.process_time()
    results = await asyncio.gather(*map(_task(queue), range(calls)))
    spent = time.process_time() - begin
    if results != list(range(1, calls + 1)):
        raise SystemExit("a wrong result")
    await queue.close()
    return {"us": spent / calls * 1e6}


def _task(queue: Queue) -> Callable[[int], Coroutine[Any, Any, int]]:
    async def call(number: int) -> int:
        result: int = await queue.call(number)
        return result

    return call


# latency


async def open_loop(opens: Opens, job: Job, arrivals: Sequence[float]) -> dict[str, float]:
    """Return the latencies in seconds, each from the time at which its call was due. Late answers do not delay later calls."""
    loop, sizes = asyncio.get_running_loop(), list[int]()
    latencies: dict[int, float] = {}

    async def body(items: list[int]) -> list[int]:
        sizes.append(len(items))
        await asyncio.sleep(job["base"] + job["each"] * len(items))
        return items

    async def one(number: int, at: float) -> None:
        if await queue.call(number) != number:
            raise SystemExit("a wrong result")
        latencies[number] = loop.time() - at

    queue, tasks, begin = opens(body, job), [], loop.time()
    for number, at in enumerate(arrivals):
        await asyncio.sleep(begin + at - loop.time())
        tasks.append(asyncio.create_task(one(number, begin + at)))
    await asyncio.gather(*tasks)
    makespan = loop.time() - begin - arrivals[0]
    await queue.close()
    later = [latencies[number] for number, at in enumerate(arrivals) if at > arrivals[0] + START]
    every = list(latencies.values())
    found = {"p50": share(every, 0.5), "p99": share(every, 0.99), "p99_later": share(later or every, 0.99)}
    return found | {"makespan": makespan, "batch": len(arrivals) / len(sizes)}


def share(values: Sequence[float], part: float) -> float:
    """Return the quantile: the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[math.ceil(part * len(values)) - 1]


def arrivals_of(kind: str, rate: float, calls: int, seed: int) -> list[float]:
    """Return the times of the calls in seconds: ``even`` or ``poisson``, with a mean of ``rate`` calls a second."""
    if kind == "even":
        return [number / rate for number in range(calls)]
    draw, now, times = random.Random(seed), 0.0, []
    for _ in range(calls):
        now += draw.expovariate(rate)
        times.append(now)
    return times


async def busy(opens: Opens, job: Job) -> dict[str, float]:
    """Make one series of calls in real time, and return its figures."""
    return await open_loop(opens, job, arrivals_of(job["arrivals"], job["rate"], job["calls"], job["seed"]))


def loads(opens: Opens, job: Job, run: Run) -> dict[str, Any]:
    """Make calls with Poisson arrivals, at several rates and from several seeds, in virtual time."""
    found = []
    for rate in job["rates"]:
        for seed in job["seeds"]:
            arrivals = arrivals_of("poisson", rate, job["calls"], seed)
            found.append({"rate": rate, "seed": seed, **run(open_loop(opens, job, arrivals))})
    return {"runs": found}


CASES: dict[str, Callable[[Opens, Job], Coroutine[Any, Any, dict[str, float]]]] = {
    "callers": closed_loop,
    "flood": flood,
    "busy": busy,
}


def main(opens: Opens, virtual: Run = run_in_virtual_time) -> None:
    """Run the job that the command line names, and print one line of JSON.

    Args:
        opens: makes the queue; called in the loop in which it is used.
        virtual: runs a coroutine in virtual time.
    """
    job: Job = json.loads(sys.argv[1])
    found = loads(opens, job, virtual) if job["case"] == "loads" else asyncio.run(CASES[job["case"]](opens, job))
    print(json.dumps(found))
