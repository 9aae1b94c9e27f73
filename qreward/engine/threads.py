"""Worker threads for blocking functions.

``Workers`` runs jobs in daemon threads, up to a maximum number of threads. ``concurrent.futures`` is not used because it joins its
threads when the process ends: one hung function would keep the process alive forever. No function here waits for a thread to end. Each
thread sleeps on a raw lock of its own. Idle threads form a stack: threads that are not needed stay at the bottom of the stack, and end
after a while.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from qreward.engine import background

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
        try:
            worker = pool.idle.pop()
        except IndexError:
            return self._start_thread(pool, job)
        worker.job = job
        worker.wakeup.release()
        return True

    def _start_thread(self, pool: _ThreadPool, job: Job) -> bool:
        with pool.lock:
            if pool.threads >= self.most:
                return False
            pool.threads += 1
            pool.started += 1
            name = f"qreward-worker-{pool.started}"
        try:
            threading.Thread(target=_Worker(pool, job, self._idle_seconds).work, name=name, daemon=True).start()
        except RuntimeError:
            if pool.leave() == 0:
                raise
            return False
        return True


class _ThreadPool:
    def __init__(self) -> None:
        self.idle: list[_Worker] = []
        self.lock = threading.Lock()
        self.threads = 0
        self.started = 0

    def leave(self) -> int:
        with self.lock:
            self.threads -= 1
            return self.threads


class _Worker:
    """Runs jobs in one thread. Between jobs, the thread sleeps on the lock ``wakeup``."""

    __slots__ = ("_idle_seconds", "_pool", "job", "wakeup")

    def __init__(self, pool: _ThreadPool, job: Job, idle_seconds: float) -> None:
        self._pool, self._idle_seconds = pool, idle_seconds
        self.job: Job | None = job
        self.wakeup = threading.Lock()
        self.wakeup.acquire()

    def work(self) -> None:
        """Run all jobs of the thread, one after the other."""
        idle, report = self._pool.idle, None
        while (job := self.job) is not None:
            self.job = None
            try:
                report = job()
            except BaseException:
                _report_error()
            del job  # an idle thread keeps nothing alive
            idle.append(self)
            if report is not None:
                try:
                    report()
                except BaseException:
                    _report_error()
                report = None
            self._rest()
        self._pool.leave()

    def _rest(self) -> None:
        """Sleep until there is a job. After ``idle_seconds`` without a job, leave the stack of idle threads, which ends the thread."""
        if self.wakeup.acquire(timeout=self._idle_seconds):
            return
        try:
            self._pool.idle.remove(self)
        except ValueError:  # ``run`` has just taken this worker off the stack, and will release the lock
            self.wakeup.acquire()


def _report_error() -> None:
    """Report an exception that a job raised, against its contract, to ``threading.excepthook``. The worker keeps running."""
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


SHARED = Workers()
"""The pool that all functions of this process share."""
