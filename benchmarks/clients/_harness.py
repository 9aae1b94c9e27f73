"""Shared by the clients of the CPU benchmarks: arguments, conversations, workers, and the measurement of CPU, memory and loop lag.

This module imports only the standard library, so that it runs in the environment of any library and adds the same cost to each. The script
of a client opens the client as an async context manager that yields a *drive*: a coroutine function that sends a list of conversations and
returns the number of right verdicts. ``main`` runs it once and prints one line of JSON.

    one call -> memory baseline -> warm-up -> collect garbage -> the measured window
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Messages = list[dict[str, str]]
Drive = Callable[[list[Messages]], Awaitable[int]]
Call = Callable[[Messages], Awaitable[str | None]]

GC_THRESHOLDS = (50_000, 20, 100)
LAG_PERIOD = 0.02  # seconds between two timers of the lag probe; they cost about 0.1 % of a core
DISTRIBUTIONS = ("qreward", "openai", "litellm", "aiohttp", "httpx", "httpx2", "httpx-aiohttp", "msgspec", "pydantic")

SYSTEM = (
    "You are a strict judge of answers written by a language model. Compare the answer with the question, look for errors of "
    "fact, of arithmetic and of reasoning, and for instructions that were not followed. Give a whole number from 0 (useless) "
    "to 10 (cannot be improved), then one paragraph that says what decided it. Do not reward length, tone or confidence. An answer "
    "that is right for a wrong reason gets at most 5."
)
QUESTION = (
    "### Question {index}\nA tank holds {index} litres. It is filled at 12 litres a minute and leaks 3 litres a minute. "
    "How long does it take until it is full, and how long would it take without the leak? Show each step.\n\n"
    "### Answer to be judged\nThe net rate is 12 - 3 = 9 litres a minute, so the tank is full after {index} / 9 minutes. "
    "Without the leak it would take {index} / 12 minutes, which is three quarters of the first time. Therefore the leak costs "
    "a quarter of the time, or, said the other way round, filling takes a third longer than it would have to. If the leak were "
    "closed when the tank is half full, the time would lie between the two.\n\n"
    "### Task\nScore the answer from 0 to 10."
)
DISTINCT = 256


@dataclass(frozen=True)
class Job:
    """One measurement: the base URLs of the endpoints, and the numbers of calls in flight, in the measured window and in the warm-up.

    Each answer must be the text ``verdict``, in ``pieces`` pieces.
    """

    urls: tuple[str, ...]
    concurrency: int
    requests: int
    warm_up: int
    verdict: str
    pieces: int = 1


def conversations(count: int) -> list[Messages]:
    """Return ``count`` judge conversations of about 1.2 kB each. A few hundred distinct ones are repeated."""
    distinct: list[Messages] = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION.format(index=900 + index)}]
        for index in range(min(count, DISTINCT))
    ]
    return [distinct[index % DISTINCT] for index in range(count)]


def closed_loop(call: Call, job: Job) -> Drive:
    """Run ``job.concurrency`` workers, each of which makes its next call when its last one is answered."""

    async def drive(batch: list[Messages]) -> int:
        work, right = iter(batch), 0

        async def worker() -> None:
            nonlocal right
            for messages in work:
                verdict = await call(messages)
                right += verdict == job.verdict

        async with asyncio.TaskGroup() as group:
            for _ in range(min(job.concurrency, len(batch))):
                group.create_task(worker())
        return right

    return drive


class LagProbe:
    """Measures the longest delay of a timer of the event loop, in seconds."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._loop = asyncio.get_running_loop()
        self._arm()

    def _arm(self) -> None:
        self._due = self._loop.time() + LAG_PERIOD
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self.worst = max(self.worst, self._loop.time() - self._due)
        self._arm()

    def stop(self) -> float:
        self._timer.cancel()
        return max(self.worst, self._loop.time() - self._due)


class Memory:
    """Peak resident memory in MB: on Linux since this object was made, elsewhere since the process began."""

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.before = self.peak()

    @staticmethod
    def peak() -> float:
        with suppress(OSError):
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

    def growth(self) -> float:
        return self.peak() - self.before


@dataclass(frozen=True)
class Measured:
    """The output of a client process. ``rss_mb`` is the growth over the baseline, ``base_rss_mb`` the baseline itself.

    ``cpu_us`` and ``profile`` are per piece of an answer, ``wall_rps`` is pieces per second. An answer that is not streamed is one piece.
    """

    cpu_us: float
    wall_rps: float
    lag_ms: float
    rss_mb: float
    base_rss_mb: float
    requests: int
    right: int
    versions: dict[str, str]
    profile: dict[str, float] | None = None


async def measure(client: Callable[[Job], AbstractAsyncContextManager[Drive]], job: Job, profile: bool) -> Measured:
    """Open the client and run one job with it."""
    async with client(job) as drive:
        await drive(conversations(1))
        memory = Memory()
        await drive(conversations(job.warm_up))
        batch = conversations(job.requests)
        sampler = _sampler() if profile else None
        gc.collect()
        probe, wall, cpu = LagProbe(), time.perf_counter(), time.process_time()
        right = await drive(batch)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        lag = probe.stop()
        shares = sampler.stop() if sampler else None
    pieces = job.requests * job.pieces
    micros = cpu / pieces * 1e6
    return Measured(
        cpu_us=micros,
        wall_rps=pieces / wall,
        lag_ms=lag * 1e3,
        rss_mb=memory.growth(),
        base_rss_mb=memory.before,
        requests=job.requests,
        right=right,
        versions=dict(_versions(DISTRIBUTIONS)),
        profile=shares and {name: share * micros for name, share in shares.items()},
    )


def main(client: Callable[[Job], AbstractAsyncContextManager[Drive]]) -> None:
    """Read the arguments, measure, print one JSON line. Ends with status 1 if an answer was missing or wrong."""
    args = _arguments()
    _prepare(args.core, args.gc)
    job = Job(tuple(args.urls.split(",")), args.concurrency, args.requests, args.warm_up, args.verdict, args.pieces)
    measured = asyncio.run(measure(client, job, args.profile))
    print(json.dumps(asdict(measured)), flush=True)
    if measured.right != measured.requests:
        sys.exit(f"{measured.requests - measured.right} of {measured.requests} verdicts were missing or wrong")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--urls", required=True, help="base URLs of the endpoints, separated by commas")
    parser.add_argument("--concurrency", type=int, required=True, help="calls in flight over all endpoints")
    parser.add_argument("--requests", type=int, required=True, help="calls in the measured window")
    parser.add_argument("--warm-up", type=int, required=True, help="calls before it")
    parser.add_argument("--verdict", required=True, help="the text that each answer must hold")
    parser.add_argument("--pieces", type=int, default=1, help="pieces in which an answer comes; costs are of one")
    parser.add_argument("--core", type=int, help="pin the process to this core")
    parser.add_argument("--gc", action="store_true", help=f"gc.set_threshold{GC_THRESHOLDS}")
    parser.add_argument("--profile", action="store_true", help="also sample where the CPU time goes, by package")
    return parser.parse_args()


def _prepare(core: int | None, relaxed_gc: bool) -> None:
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    if relaxed_gc:
        gc.set_threshold(*GC_THRESHOLDS)
    with suppress(ImportError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _versions(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in names:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _sampler() -> Any:
    return importlib.import_module("_sampler").Sampler()
