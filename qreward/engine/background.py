"""Work that no caller awaits: background asyncio tasks, worker threads for blocking functions, and hooks that run in a forked child.

Unlike the threads of ``concurrent.futures``, a hung worker thread does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

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


Job = Callable[[], Callable[[], object] | None]
"""A job reports its own result, and does not raise. It may return a function that reports the result: the worker calls it when it counts
as idle again, so a next job that is started because of the report can go to the same worker."""

IDLE_SECONDS = 10.0
MOST = 1024
"""Maximum number of threads in the pool that all functions share. It is only a safeguard: the functions' own limits are far lower."""


class Workers:
    """Runs jobs in a pool of at most ``most`` daemon threads, hung ones included. A thread without work ends after ``idle_seconds``.

    A forked child starts with no threads. A job that is to see the caller's context variables is run in a copy of its context.
    """

    def __init__(self, most: int = MOST, idle_seconds: float = IDLE_SECONDS) -> None:
        self.most = most
        self._idle_seconds = idle_seconds
        self._started = 0
        self._begin()
        watch(self, Workers._begin)

    def _begin(self) -> object:
        inherited = self.__dict__.copy()
        self._jobs: SimpleQueue[Job] = SimpleQueue()  # each job in it has its thread, which no longer counts as idle
        self._lock = threading.RLock()  # reentrant: while it is held, garbage collection may run code that needs a thread
        self._idle = self._threads = 0
        return inherited

    def run(self, job: Job) -> bool:
        """Run a job in another thread soon. Returns False if all threads are busy and no further thread can be started.

        Raises ``RuntimeError`` if the pool has no thread, and the system cannot start one.
        """
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._jobs.put(job)
                return True
            if self._threads >= self.most:
                return False
            self._threads += 1
            self._started += 1
            name = f"qreward-worker-{self._started}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    raise
            return False
        self._jobs.put(job)
        return True

    def _work(self) -> None:
        """Run all jobs of one thread, one after the other."""
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_seconds)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        self._threads -= 1
                        return
                job = self._jobs.get()  # ``run`` has just put a job there for this thread
            report = _guarded(job)
            del job  # an idle thread keeps nothing alive
            with self._lock:
                self._idle += 1
            if report is not None:
                _guarded(report)
            del report


def _guarded(function: Callable[[], T]) -> T | None:
    """Call a function. What it raises, against its contract, goes to ``threading.excepthook``, and the worker keeps running."""
    try:
        return function()
    except BaseException:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        return None


SHARED = Workers()
"""The pool that all functions of this process share."""
