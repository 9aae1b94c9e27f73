"""Tests that are coroutines, and waiting for what comes soon. Nothing here depends on a library that is tested."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop; it must leave no task behind."""

    async def checked(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(60):
            await test(*args, **kwargs)
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    @functools.wraps(test)
    def running(*args: Any, **kwargs: Any) -> None:
        asyncio.run(checked(*args, **kwargs))

    return running


async def until(condition: Callable[[], Any]) -> Any:
    """Wait until something is true, and return it."""
    async with asyncio.timeout(30):
        while not (found := condition()):  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.001)
    return found
