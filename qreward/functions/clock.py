"""Which time and which threads decorated functions use: those of the machine, or for a while those of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from qreward.engine.blocking_time import REAL_TIME, BlockingTime
from qreward.engine.workers import Job


class Clock:
    """Stands for whatever time is in use."""

    def __init__(self) -> None:
        self.time: BlockingTime = REAL_TIME

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        return self.time.now()

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        """See :class:`~qreward.engine.blocking_time.BlockingTime`."""
        return self.time.wait(lock, timeout)

    def wake(self, lock: threading.Lock) -> None:
        """See :class:`~qreward.engine.blocking_time.BlockingTime`."""
        self.time.wake(lock)

    def run(self, job: Job) -> bool:
        """See :class:`~qreward.engine.blocking_time.BlockingTime`."""
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
