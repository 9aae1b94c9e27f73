"""The clock and the threads that decorated functions use: the real ones, or temporarily those of a test.

Also holds the switch that turns waiting off in tests. This module knows nothing of retries, rate limits and hedges.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from qreward.engine.threads import REAL_TIME, BlockingTime, Job


class Clock:
    """Delegates to the clock that is in use."""

    def __init__(self) -> None:
        self.time: BlockingTime = REAL_TIME

    def now(self) -> float:
        """Seconds on a monotonic clock."""
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
    """Make all decorated functions use another clock inside the ``with`` block.

    Times recorded with the previous clock have no meaning in the block.
    """
    before, CLOCK.time = CLOCK.time, time
    try:
        yield
    finally:
        CLOCK.time = before


class Switch:
    """``off`` is true while functions wait for nothing."""

    off = False


@contextmanager
def no_waiting() -> Iterator[None]:
    """Inside the ``with`` block, decorated functions retry at once, ignore rate limits and are never hedged. Other settings still apply.

    For tests of code that uses decorated functions. It applies in all threads, to calls that begin inside the block.

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
