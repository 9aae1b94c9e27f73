"""Which time and which threads decorated functions use: those of the machine, or for a while those of a test.

A switch for tests: nothing waits. Knows nothing of what would.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from qreward.engine.threads import REAL_TIME, BlockingTime, Job


class Clock:
    """Stands for whatever time is in use."""

    def __init__(self) -> None:
        self.time: BlockingTime = REAL_TIME

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        return self.time.now()

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """See :class:`~qreward.engine.threads.BlockingTime`."""
        return self.time.wait(lock, timeout)

    def wake(self, lock: threading.Lock) -> None:
        """See :class:`~qreward.engine.threads.BlockingTime`."""
        self.time.wake(lock)

    def run(self, job: Job) -> bool:
        """See :class:`~qreward.engine.threads.BlockingTime`."""
        return self.time.run(job)


CLOCK = Clock()


@contextmanager
def on(time: BlockingTime) -> Iterator[None]:
    """Let all decorated functions use another time while this holds. What they counted under the old one means nothing in it."""
    before, CLOCK.time = CLOCK.time, time
    try:
        yield
    finally:
        CLOCK.time = before


class Switch:
    """``off`` while functions are to wait for nothing."""

    off = False


@contextmanager
def no_waiting() -> Iterator[None]:
    """While it holds, decorated functions retry at once, ignore rate limits and are never hedged. All else is as it is set.

    For tests of code that uses decorated functions. It holds in all threads, for calls that begin meanwhile.

    Example:
        >>> from qreward import schedule
        >>> tries = []
        >>> @schedule(retry_times=3, retry_interval=60.0)
        ... def flaky():
        ...     tries.append(1)
        ...     return 1 / (len(tries) - 1)
        >>> with no_waiting():
        ...     flaky()
        1.0
    """
    before, Switch.off = Switch.off, True
    try:
        yield
    finally:
        Switch.off = before
