"""Tasks that nobody waits for. This room knows nothing of what they do.

What starts anew in a forked child. Knows nothing of what it is.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

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


T = TypeVar("T")

_ALIVE: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
_INHERITED: list[object] = []


def watch(thing: T, begin_again: Callable[[T], object]) -> None:
    """See that ``begin_again(thing)`` is called in each forked child, as long as somebody holds the thing.

    It returns what was the parent's: locks, loops, connections. That is kept, for closing it would reach the parent.
    """
    _ALIVE[thing] = begin_again


def _after_fork() -> None:
    for thing, begin_again in list(_ALIVE.items()):
        _INHERITED.append(begin_again(thing))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
