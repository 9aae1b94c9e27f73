"""Shared by the clients of the makespan benchmark: the messages to and from the benchmark, the clock, and the counts of answers.

This module imports only the standard library, so that it runs in the environment of any library. The script of a client opens the client as
an async context manager that yields a *drive*: a coroutine function that sends a bulk and records the results in a :class:`Tally`.

    the job (a line of JSON) -> one call to a server outside the fleet -> "ready" -> "go" -> the bulk, against the clock -> the result
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TextIO

Messages = list[dict[str, str]]
Items = Iterable[tuple[int, Messages]]
Call = Callable[[Messages], Awaitable[str | None]]

MODEL = "judge"
WARM_UP: Messages = [{"role": "user", "content": "Is this thing on?"}]
DISTRIBUTIONS = ("qreward", "openai", "litellm", "aiohttp", "httpx", "httpx2", "httpx-aiohttp")


@dataclass(frozen=True)
class Job:
    """The configuration of a client: the base URLs of the endpoints, and the settings that were chosen by hand."""

    urls: tuple[str, ...]
    settings: dict[str, Any]


class Tally:
    """The results of a bulk: texts by index (None means no answer), the number of errors by type, and the times of the answers."""

    def __init__(self, count: int) -> None:
        self.texts: list[str | None] = [None] * count
        self.errors: Counter[str] = Counter()
        self.times: list[float] = []
        self.begin = time.perf_counter()

    def answer(self, index: int, text: str | None) -> None:
        self.texts[index] = text
        self.times.append(time.perf_counter() - self.begin)

    def lose(self, error: BaseException) -> None:
        self.errors[type(error).__name__] += 1


Drive = Callable[[list[Messages], Tally], Awaitable[None]]
Client = Callable[[Job], AbstractAsyncContextManager[Drive]]


async def ask(call: Call, index: int, messages: Messages, tally: Tally) -> None:
    """Make one call and record its result."""
    try:
        text = await call(messages)
    except Exception as error:
        tally.lose(error)
    else:
        tally.answer(index, text)


async def workers(count: int, items: Iterator[tuple[int, Messages]], call: Call, tally: Tally) -> None:
    """Run ``count`` workers over shared ``items``. Each makes its next call when its last one has ended."""

    async def worker() -> None:
        for index, messages in items:
            await ask(call, index, messages, tally)

    await asyncio.gather(*(worker() for _ in range(count)))


def main(client: Client) -> None:
    """Read a job from stdin, run it, and print the result on stdout as a line of JSON. The process ends with that line."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of a compared library must not look like a reply
    _prepare(_arguments().core)
    asyncio.run(_play(client, json.loads(sys.stdin.readline()), replies))


async def _play(client: Client, told: dict[str, Any], replies: TextIO) -> None:
    settings, work = told["settings"], told["conversations"]
    async with client(Job((told["warm_up"],), settings)) as drive:
        await drive([WARM_UP], tally := Tally(1))
    if tally.texts[0] is None:
        sys.exit(f"the first call failed: {dict(tally.errors)}")
    async with client(Job(tuple(told["urls"]), settings)) as drive:
        _say(replies, "ready")
        await asyncio.to_thread(sys.stdin.readline)
        _say(replies, await _measured(drive, work, told["cap"]))
        sys.stdin.readline()  # the event loop stands still while the benchmark reads the counters of the servers
        os._exit(0)  # nothing more is measured, and some clients take long to close


async def _measured(drive: Drive, work: list[Messages], cap: float) -> dict[str, Any]:
    tally, cpu = Tally(len(work)), time.process_time()
    bulk = asyncio.ensure_future(drive(work, tally))
    await asyncio.wait([bulk], timeout=cap)
    seconds = time.perf_counter() - tally.begin
    if finished := bulk.done():
        bulk.result()
    return {
        "finished": finished,
        "wall_s": seconds,
        "cpu_s": time.process_time() - cpu,
        "texts": list(tally.texts),
        "errors": dict(tally.errors),
        "reached_s": {f"{share:.0%}": _reached(tally.times, share, len(work)) for share in (0.5, 0.9, 0.99)},
        "versions": dict(_versions()),
    }


def _reached(times: list[float], share: float, count: int) -> float | None:
    """Return the time at which this share of all items had an answer, or None if it never had."""
    wanted = max(1, round(share * count))
    return times[wanted - 1] if wanted <= len(times) else None


def _say(replies: TextIO, what: Any) -> None:
    replies.write(json.dumps(what) + "\n")
    replies.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--core", type=int, help="pin the process to this core")
    return parser.parse_args()


def _prepare(core: int | None) -> None:
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def _versions() -> Iterator[tuple[str, str]]:
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            yield name, version(name)
