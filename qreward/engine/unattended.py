"""Tasks that nobody waits for. This room knows nothing of what they do."""

from __future__ import annotations

import asyncio
from typing import Any


def tell(task: asyncio.Task[Any]) -> None:
    """To be called when a task is done: tells the loop of its error, which would otherwise be told when the garbage collector comes.

    Not of Ctrl-C or an exit in the caller's code: they end the loop, and are seen there.
    """
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        task.get_loop().call_exception_handler({"message": "a task of qreward failed", "exception": error, "task": task})
