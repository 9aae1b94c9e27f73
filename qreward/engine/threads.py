"""Worker threads for blocking functions.

``concurrent.futures`` is not used because it joins its threads when the process ends: one hung function would keep the process alive
forever. No function here waits for a thread to end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from qreward.engine import background

T = TypeVar("T")
Job = Callable[[], Callable[[], object] | None]
"""A job that a worker runs. A job must not raise, and it reports its own result. It may report the result while it runs, or return a
function that reports the result. The worker calls this function when the worker counts as idle again. So a next job that is
started because of the report can go to the same worker. While the job itself runs, the worker is busy, and a next job needs another
worker."""

IDLE_SECONDS = 10.0
"""Seconds without work after which a thread ends."""
MOST = 1024
"""Maximum number of threads in the pool that all functions share. It is only a safeguard: the functions' own limits are far lower."""


class Workers:
    """Runs jobs in a pool of daemon threads.

    Args:
        most: maximum number of threads, including hung threads; at least 1.
        idle_seconds: seconds without work after which a thread ends.

    A forked child starts with no threads. To let a job see the caller's context variables, run it with
    ``contextvars.copy_context().run``.

    Example:
        >>> workers, done = Workers(2), threading.Lock()
        >>> done.acquire()
        True
        >>> workers.run(done.release)
        True
        >>> done.acquire(timeout=5)
        True
    """

    def __init__(self, most: int = MOST, idle_seconds: float = IDLE_SECONDS) -> None:
        self.most = most
        self._idle_seconds = idle_seconds
        self._pool = _ThreadPool()
        background.watch(self, Workers._start_over)

    def _start_over(self) -> object:
        inherited, self._pool = self._pool, _ThreadPool()
        return inherited

    def run(self, job: Job) -> bool:
        """Run a job in another thread soon.

        Returns:
            False if all threads are busy and no further thread can be started.

        Raises:
            RuntimeError: the pool has no thread, and the system cannot start one.
        """
        pool = self._pool
        with pool.lock:
            if pool.idle:
                pool.idle -= 1
                pool.jobs.put(job)
                return True
            if pool.threads >= self.most:
                return False
            pool.threads += 1
            pool.started += 1
            name = f"qreward-worker-{pool.started}"
        try:
            threading.Thread(target=_work, args=[pool, self._idle_seconds], name=name, daemon=True).start()
        except RuntimeError:
            with pool.lock:
                pool.threads -= 1
                if not pool.threads:
                    raise
            return False
        pool.jobs.put(job)
        return True


class _ThreadPool:
    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job] = SimpleQueue()  # each job in it has its thread, which no longer counts as idle
        self.lock = threading.RLock()  # reentrant: while it is held, garbage collection may run code that needs a thread
        self.idle = 0
        self.threads = 0
        self.started = 0


def _work(pool: _ThreadPool, idle_seconds: float) -> None:
    """Run all jobs of one thread, one after the other."""
    while True:
        try:
            job = pool.jobs.get(timeout=idle_seconds)
        except Empty:
            with pool.lock:
                if pool.idle:
                    pool.idle -= 1
                    pool.threads -= 1
                    return
            job = pool.jobs.get()  # ``run`` has just put a job there for this thread
        report = _guarded(job)
        del job  # an idle thread keeps nothing alive
        with pool.lock:
            pool.idle += 1
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
