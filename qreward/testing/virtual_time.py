"""An event loop on virtual time: sleeps of hours pass at once, in the right order, the same in each run.

When nothing is left to run, the clock jumps to the next timer. Real sockets and worker threads do not know that clock:
a test on this loop talks to fakes. Decorated functions go by it; other code that reads ``time.monotonic`` must be given
``loop.time`` instead.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from qreward.engine.threads import Job
from qreward.functions.clock import on
from qreward.functions.function import leave_loop

T = TypeVar("T")

TURN = 1e-9
"""Seconds that one turn of the loop takes. A clock that stood still between timers would let a timer whose remainder is too
small for a float set itself again for ever."""
_TURNS_TO_SETTLE = 3  # in which a task that was told to end does so


class Deadlock(RuntimeError):
    """Nothing will ever happen again: no timer is set, nothing is ready, and the coroutine is not done."""


class _JumpingSelector(selectors.DefaultSelector):
    """Waits by moving the clock. What is ready in truth, such as a call from another thread, still comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if timeout is None and not events:
            raise Deadlock(f"deadlock: nothing is ready and no timer is set; {_waiting()}")
        step = 0.0 if events or timeout is None else timeout
        self.now = max(self.now + max(step, TURN), math.nextafter(self.now, math.inf))
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose ``time()`` starts at 0 and jumps from timer to timer.

    Raises ``Deadlock`` out of the run, naming the tasks that wait, where a real loop would wait for ever.

    Example:
        >>> with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        ...     runner.run(asyncio.sleep(3600))
        ...     round(runner.get_loop().time())
        3600
    """

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop was made, plus ``TURN`` for each of its turns."""
        return self._clock.now

    def let_pass(self, seconds: float) -> None:
        """Let time pass at once."""
        self._clock.now += seconds

    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are set."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return [timer for timer in scheduled if not timer.cancelled()]


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, as ``asyncio.run`` does, and see that it leaves nothing behind.

    Args:
        main: what to run. In it, ``QRewardClient(..., clock=asyncio.get_running_loop().time)`` makes a client on virtual time.

    Raises:
        Deadlock: it waits for something that cannot happen.
        AssertionError: it ended, but a task is still under way or a timer still set. An unclosed client is one cause.

    Example:
        >>> async def patient():
        ...     await asyncio.gather(asyncio.sleep(60), asyncio.sleep(3600))
        ...     return round(asyncio.get_running_loop().time())
        >>> run_in_virtual_time(patient())
        3600
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        with on(_LoopTime(loop)):
            value = runner.run(main)
            runner.run(leave_loop())
        runner.run(_settle())
        left = [*map(_described, asyncio.all_tasks(loop)), *map(repr, loop.timers())]
    if left:
        raise AssertionError(f"{len(left)} tasks and timers are left behind: {'; '.join(sorted(left)[:10])}")
    return value


class _LoopTime:
    """The time of a virtual loop for decorated functions, those that block included: what one waits for, the loop's clock has passed."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.now = loop.time
        self._pass = loop.let_pass

    def wait(self, lock: threading.Lock, timeout: float | None) -> bool:
        if not lock.acquire(blocking=False):
            if timeout is None:
                raise Deadlock("deadlock: a blocking call waits for what only this thread could do; use run_in_virtual_threads")
            self._pass(timeout)
            return lock.acquire(blocking=False)
        return True

    def wake(self, lock: threading.Lock) -> None:
        lock.release()

    def run(self, job: Job) -> bool:
        """At once, in this thread."""
        report = job()
        if report is not None:
            report()
        return True


async def _settle() -> None:
    for _ in range(_TURNS_TO_SETTLE):
        await asyncio.sleep(0)


def _waiting() -> str:
    tasks = sorted(map(_described, asyncio.all_tasks()))
    return f"{len(tasks)} tasks wait for ever: {'; '.join(tasks[:10])}" if tasks else "no task is left"


def _described(task: asyncio.Task[Any]) -> str:
    """Name and place of a task."""
    stack = task.get_stack(limit=1)
    place = f" at {stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else ""
    return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', task.get_coro())}){place}"
