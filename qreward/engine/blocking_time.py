"""Time and threads for code that blocks: the one seam through which it waits, so that tests can give it virtual time instead.

Waiting and waking go through a raw ``threading.Lock`` that is held already: whoever waits acquires it, whoever wakes releases it.
An ``Event`` or a ``Condition`` would do the same with several locks. Knows nothing of what is waited for.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import Protocol

from qreward.engine.workers import SHARED, Job, Workers


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
