"""Batch functions that note what they were given, and a run of each test on virtual time."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from qreward.testing.virtual_time import run_in_virtual_time


class Noted:
    """An async batch function that echoes its items; notes the batches, when they began, and how many ran at once."""

    __name__ = __qualname__ = "noted"

    def __init__(self, seconds: float = 0.0, *, each: float = 0.0) -> None:
        self.seconds = seconds
        self.each = each
        self.batches: list[list[Any]] = []
        self.times: list[float] = []
        self.running = 0
        self.peak = 0
        self.cancelled = 0

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(list(items))
        self.times.append(now())
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            if self.seconds or self.each:
                await asyncio.sleep(self.seconds + self.each * len(items))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return list(items)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def now() -> float:
    """Seconds of the loop, without its own turns if it is virtual."""
    return round(asyncio.get_running_loop().time(), 4)


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test on virtual time, on a loop that fails if a timer or task is left behind."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


def settings_of(function: Any) -> Any:
    """The current settings of a batched function."""
    return function.change.__self__.settings


def start(call: Callable[..., Awaitable[Any]], *items: Any, **settings: Any) -> list[asyncio.Task[Any]]:
    """A caller for each item."""
    return [asyncio.ensure_future(call(item, **settings)) for item in items]


async def later(seconds: float, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """A call that begins in some seconds."""
    await asyncio.sleep(seconds)
    return await call(*args)


async def turns(count: int = 6) -> None:
    """Let the loop turn, so that everything which is ready has run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> Any:
    """Let the loop turn until something is true, and return it."""
    for _ in range(100):
        if found := condition():
            return found
        await asyncio.sleep(0)
    raise AssertionError("it never became true")


async def outcomes(callers: list[Any]) -> list[Any]:
    """What became of each caller: its result or its exception."""
    return await asyncio.gather(*callers, return_exceptions=True)


def kinds(found: list[Any]) -> list[Any]:
    """Exceptions by their type, results as they are."""
    return [type(one) if isinstance(one, BaseException) else one for one in found]


class Streaming:
    """A batch function that yields (number, item) for ever, or so many times; notes how far it came and how often it was closed."""

    def __init__(self, times: int = 10**9, seconds: float = 0.0) -> None:
        self.times = times
        self.seconds = seconds
        self.yielded = 0
        self.batches: list[list[Any]] = []
        self.closed = 0

    async def __call__(self, items: list[Any]) -> AsyncGenerator[list[Any], None]:
        self.batches.append(items)
        try:
            for number in range(self.times):
                if self.seconds:
                    await asyncio.sleep(self.seconds)
                self.yielded = number + 1
                yield [(number, item) for item in items]
        finally:
            self.closed += 1


class Blocked:
    """A batch function that blocks its thread until it is freed; leaving the block frees it."""

    __name__ = __qualname__ = "blocked"

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.free = threading.Event()
        self.idents: set[int] = set()

    def __enter__(self) -> Blocked:
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()

    def __call__(self, items: list[Any]) -> list[Any]:
        self.idents.add(threading.get_ident())
        self.began.release()
        assert self.free.wait(60)
        return items
