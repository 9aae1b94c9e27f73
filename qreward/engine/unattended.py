"""Tasks that nobody waits for. This room knows nothing of what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

_UNDER_WAY: set[asyncio.Task[Any]] = set()
"""A loop holds its tasks weakly."""


def leave_to_itself(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
    """Have a loop do something that nobody waits for; nothing of the caller's context is kept by it."""
    task = loop.create_task(work, context=Context())
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    task.add_done_callback(tell)


def tell(task: asyncio.Task[Any]) -> None:
    """To be called when a task is done: tells the loop of its error, which would otherwise be told when the garbage collector comes.

    Not of Ctrl-C or an exit in the caller's code: they end the loop, and are seen there.
    """
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        task.get_loop().call_exception_handler({"message": "a task of qreward failed", "exception": error, "task": task})
