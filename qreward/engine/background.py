"""Background asyncio tasks that no caller awaits, and hooks that reset objects in a forked child."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

_TASKS: set[asyncio.Task[Any]] = set()
"""Strong references to the background tasks. They are needed because an event loop holds only weak references to its tasks."""


def run_in_background(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine in the background of an event loop, in an empty context, so that it keeps no context variables alive."""
    task = loop.create_task(work, context=Context())
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    task.add_done_callback(report_error)


def report_error(task: asyncio.Task[Any]) -> None:
    """Report the error of a finished task to the exception handler of its event loop. asyncio itself reports it only when the task is
    garbage-collected, and raises ``KeyboardInterrupt`` and ``SystemExit`` out of the event loop.
    """
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        task.get_loop().call_exception_handler({"message": "a task of qreward failed", "exception": error, "task": task})


T = TypeVar("T")

_ALIVE: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
_INHERITED: list[object] = []


def watch(thing: T, begin_again: Callable[[T], object]) -> None:
    """Call ``begin_again(thing)`` in each forked child, as long as ``thing`` is alive.

    It returns the objects that the child inherited and no longer uses, such as locks, event loops and connections. They are kept alive,
    because closing them would affect the parent.
    """
    _ALIVE[thing] = begin_again


def _after_fork() -> None:
    for thing, begin_again in list(_ALIVE.items()):
        _INHERITED.append(begin_again(thing))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
