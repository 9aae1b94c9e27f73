"""What the tests of Ray's ``@serve.batch`` and of ours share: calls, forms of a batched function, and the end of Ray's queues."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

LONG = 1000.0
PAIRS = (("a", "b"), ("c", "d"))
MODES: dict[str, Callable[[Any, str, str], Any]] = {
    "by position": lambda call, one, two: call(one, two),
    "by name": lambda call, one, two: call(key1=one, key2=two),
    "both": lambda call, one, two: call(one, key2=two),
    "by name in another order": lambda call, one, two: call(key2=two, key1=one),
}
"""Ways to pass two arguments."""


def ends(test: Any) -> Any:
    """Ends the tasks that Ray's queues leave running."""

    @wraps(test)
    async def run(batch: Any) -> None:
        try:
            await test(batch)
        finally:
            for task in asyncio.all_tasks():
                if "_BatchQueue" in task.get_coro().__qualname__:  # type: ignore[union-attr]
                    task.cancel()

    return run


def both(function: Any, **settings: Any) -> Callable[[Any], list[Any]]:
    """The function, and a method that calls it, as they are decorated."""

    def made(batch: Any) -> list[Any]:
        class Holder:
            @batch(**settings)
            async def method(self, *args: Any, **kwargs: Any) -> Any:
                return await function(*args, **kwargs)

        @batch(**settings)
        async def alone(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return [alone, Holder().method]

    return made


def pairs(batch: Any, begin: Callable[[], Awaitable[None]], pieces: int = 1, size: int = 2) -> dict[str, Any]:
    """A function, a method, and the same as generators of numbered pieces; each awaits ``begin`` and returns pairs of its arguments."""
    decorated = batch(max_batch_size=size, batch_wait_timeout_s=LONG)

    async def paired(key1: list[str], key2: list[str]) -> list[Any]:
        await begin()
        return [(one, two) for one, two in zip(key1, key2, strict=True)]

    async def numbered(key1: list[str], key2: list[str]) -> Any:
        await begin()
        for number in range(pieces):
            yield [(number, one, two) for one, two in zip(key1, key2, strict=True)]

    class Holder:
        @decorated
        async def paired(self, key1: list[str], key2: list[str]) -> list[Any]:
            return await paired(key1, key2)

        @decorated
        async def numbered(self, key1: list[str], key2: list[str]) -> Any:
            async for piece in numbered(key1, key2):
                yield piece

    holder = Holder()
    alone = {"function": decorated(paired), "generator": decorated(numbered)}
    return alone | {"method": holder.paired, "generator method": holder.numbered}


async def read(call: Any) -> list[Any]:
    """What a call returns or yields."""
    return [await call] if inspect.isawaitable(call) else [piece async for piece in call]


def first(call: Any) -> asyncio.Task[Any]:
    """A task that waits for the result of a call, or for its first piece."""
    return asyncio.ensure_future(call if inspect.isawaitable(call) else anext(call))


def started(call: Any, *items: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(call(item)) for item in items]


async def unfinished(*calls: Any, within: float = 0.1) -> int:
    """How many tasks are not done after some time."""
    _, pending = await asyncio.wait(calls, timeout=within)
    return len(pending)


async def at_once() -> None:
    pass


async def echo(items: list[Any]) -> list[Any]:
    if "raise" in items:
        raise ZeroDivisionError
    return items
