"""An event loop with virtual time: sleeps of hours pass at once, and each run has the same order of events."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from qreward.engine.background import Job
from qreward.engine.driver import Engine
from qreward.functions.calls import Inbox, Time, replaced_time
from qreward.functions.function import cancel_timers

T = TypeVar("T")

TURN = 1e-9
"""Virtual seconds by which each loop iteration advances the clock. If an iteration did not advance the clock, a timer whose remaining
delay is too small for a float would be rescheduled forever."""


class Deadlock(RuntimeError):
    """No progress is possible: no timer is set, no callback or thread is ready, and the test is not done."""


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the clock instead of waiting for events. Real events, such as a call from another thread, are handled first."""

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
    """Runs as an asyncio event loop whose ``time()`` starts at 0 and jumps from timer to timer.

    If a real loop would wait forever, this loop raises ``Deadlock``, which names the waiting tasks.

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
        """Return the virtual seconds since the creation of the loop, including ``TURN`` for each iteration."""
        return self._clock.now

    def let_pass(self, seconds: float) -> None:
        """Advance the clock by this many seconds at once."""
        self._clock.now += seconds

    def timers(self) -> list[asyncio.TimerHandle]:
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return [timer for timer in scheduled if not timer.cancelled()]


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new virtual loop, as ``asyncio.run`` does, and check that it leaves no task or timer behind.

    Args:
        main: the coroutine. In it, ``QRewardClient(..., clock=asyncio.get_running_loop().time)`` creates a client with virtual time.

    Returns:
        The result of the coroutine.

    Raises:
        Deadlock: the coroutine waits for an event that cannot happen.
        AssertionError: the coroutine ended, but a task still runs or a timer is still set. An unclosed client is one possible cause.

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
        with replaced_time(_LoopTime(loop)):
            value = runner.run(main)
            runner.run(cancel_timers())
        for _ in range(3):  # loop iterations that a cancelled task needs to end
            runner.run(asyncio.sleep(0))
        left = [*map(_described, asyncio.all_tasks(loop)), *map(repr, loop.timers())]
    if left:
        raise AssertionError(f"{len(left)} tasks and timers are left behind: {'; '.join(sorted(left)[:10])}")
    return value


class _LoopTime(Time):
    """Gives the clock of a virtual loop to decorated functions. A blocking caller advances the clock itself, because it blocks the loop."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.now = loop.time
        self._pass = loop.let_pass

    def keep(self, engine: Engine[Any], wake: float | None) -> None:
        pass  # ``take`` keeps the time

    def take(self, inbox: Inbox, engine: Engine[Any]) -> Any:
        while inbox.empty():
            wake = engine.scheduler.next_wake()
            if wake is None:
                raise Deadlock("deadlock: a blocking call waits for work that only this thread could do")
            self._pass(max(0.0, wake - self.now()))
            engine.apply(engine.scheduler.tick)
        return inbox.get()

    def run(self, job: Job) -> bool:
        report = job()
        if report is not None:
            report()
        return True


def _waiting() -> str:
    tasks = sorted(map(_described, asyncio.all_tasks()))
    return f"{len(tasks)} tasks wait forever: {'; '.join(tasks[:10])}" if tasks else "no task is left"


def _described(task: asyncio.Task[Any]) -> str:
    """Return text for a message: the name of a task, its coroutine, and the place where it waits."""
    stack = task.get_stack(limit=1)
    place = f" at {stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else ""
    return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', task.get_coro())}){place}"
