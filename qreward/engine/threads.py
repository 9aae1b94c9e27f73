"""Daemon threads in which blocking functions run: handed over to an idle one, else to a new one, never to more than are allowed.

``concurrent.futures`` is not used because it joins its threads when the process ends: one hung function would keep the process for
ever. Nothing here waits for a thread. Each thread has a raw lock of its own and sleeps on it; idle threads are a stack, so that
those which are not needed stay at its bottom and end. Knows nothing of what it runs, nor of limits other than its own.

Time and threads for code that blocks: the one seam through which it waits, so that tests can give it virtual time instead.

Waiting and waking go through a raw ``threading.Lock`` that is held already: whoever waits acquires it, whoever wakes releases it.
An ``Event`` or a ``Condition`` would do the same with several locks. Knows nothing of what is waited for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from qreward.engine import background as forks

Job = Callable[[], Callable[[], object] | None]
"""What a worker runs. It never raises: it reports its result itself. What it returns is called when its worker is free again:
a report made there may lead to the next job and find this worker idle, where one made in the job itself finds it busy."""

IDLE_SECONDS = 10.0
"""Seconds without work after which a thread ends."""
MOST = 1024
"""Threads of the pool that all functions share. A fuse, not a limit: the functions' own limits are far below."""


class Workers:
    """A pool of threads.

    Args:
        most: threads at once, hung ones included; at least 1.
        idle_seconds: seconds without work after which a thread ends.

    A forked child begins with no threads. The caller's context variables are seen where the job is run by
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
        self._crew = _Crew()
        forks.watch(self, Workers._begin_again)

    @property
    def idle(self) -> int:
        """Threads that wait for work."""
        return len(self._crew.idle)

    @property
    def busy(self) -> int:
        """Threads that work."""
        crew = self._crew
        return max(0, crew.threads - len(crew.idle))

    def run(self, job: Job) -> bool:
        """Have a job run in another thread, soon; False if all are busy.

        Raises:
            RuntimeError: the system gives not even one thread.
        """
        crew = self._crew
        try:
            worker = crew.idle.pop()
        except IndexError:
            return self._hire(crew, job)
        worker.job = job
        worker.bell.release()
        return True

    def _hire(self, crew: _Crew, job: Job) -> bool:
        with crew.lock:
            if crew.threads >= self.most:
                return False
            crew.threads += 1
            crew.hired += 1
            name = f"qreward-worker-{crew.hired}"
        worker = _Worker(crew, job, self._idle_seconds)
        try:
            threading.Thread(target=worker.work, name=name, daemon=True).start()
        except RuntimeError:
            if crew.leave() == 0:
                raise
            return False
        return True

    def _begin_again(self) -> object:
        parents, self._crew = self._crew, _Crew()
        return parents


class _Crew:
    """The threads of one process."""

    def __init__(self) -> None:
        self.idle: list[_Worker] = []
        self.lock = threading.Lock()
        self.threads = 0
        self.hired = 0

    def leave(self) -> int:
        """One thread less; how many are left."""
        with self.lock:
            self.threads -= 1
            return self.threads


class _Worker:
    """One thread and the bell that wakes it."""

    __slots__ = ("_crew", "_idle_seconds", "bell", "job")

    def __init__(self, crew: _Crew, job: Job, idle_seconds: float) -> None:
        self._crew, self._idle_seconds = crew, idle_seconds
        self.job: Job | None = job
        self.bell = threading.Lock()
        self.bell.acquire()

    def work(self) -> None:
        """All jobs of the thread, one after the other. Little may stand between a job's end and the rest: whom the job woke waits."""
        idle, report = self._crew.idle, None
        while (job := self.job) is not None:
            self.job = None
            try:
                report = job()
            except BaseException:
                _tell()
            del job  # an idle thread keeps nothing alive
            idle.append(self)
            if report is not None:
                try:
                    report()
                except BaseException:
                    _tell()
                report = None
            self._rest()
        self._crew.leave()

    def _rest(self) -> None:
        """Until there is a job; without one, it is time to go."""
        if self.bell.acquire(timeout=self._idle_seconds):
            return
        try:
            self._crew.idle.remove(self)
        except ValueError:  # taken off the stack this very moment: the bell will ring
            self.bell.acquire()


def _tell() -> None:
    """What a job raised, against its promise, is told as of any thread; the worker lives on."""
    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


SHARED = Workers()
"""The pool of this process."""


class BlockingTime(Protocol):
    """What blocking code knows of time and of threads: :class:`RealTime`, or ``qreward.testing.VirtualThreads``."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """Acquire a lock that somebody else will :meth:`wake`, within so many seconds, or ever; False if that did not happen."""

    def wake(self, lock: threading.Lock) -> None:
        """Release a lock for which somebody waits, or will."""

    def run(self, job: Job) -> bool:
        """Begin a job in another thread (see ``Job``); False if there is none to be had, and nothing was begun."""


class RealTime:
    """Blocking code as it runs in earnest.

    Args:
        workers: where jobs run; by default those that the process shares.

    Example:
        >>> done = threading.Lock()
        >>> REAL_TIME.wait(done, None)  # takes it
        True
        >>> REAL_TIME.run(lambda: REAL_TIME.wake(done))
        True
        >>> REAL_TIME.wait(done, 5.0)  # until it is woken
        True
    """

    def __init__(self, workers: Workers = SHARED) -> None:
        self.run = workers.run

    now = staticmethod(monotonic)

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """See :class:`BlockingTime`. A signal's handler, such as Ctrl-C's, runs in between and may raise."""
        return lock.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))

    def wake(self, lock: threading.Lock) -> None:
        """See :class:`BlockingTime`."""
        lock.release()


REAL_TIME = RealTime()
