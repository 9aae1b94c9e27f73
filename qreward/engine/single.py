"""``Single``, the waiter of a single call: it receives the outcome of the call for the caller.

The caller's own asyncio task runs the attempts of the call. Only a hedge needs another asyncio task.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

from qreward.engine.driver import LoopDriver, Waiter
from qreward.engine.snapshots import result_of
from qreward.errors import ClientClosed, QRewardError
from qreward.results import Result
from qreward.scheduler.outcome import CANCELLED, Answer
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, Task, TaskState


class Single(Waiter):
    """Runs the attempts of a single call, and receives its outcome."""

    execute = None
    __slots__ = ("_mine", "_next", "_result", "_task", "_waiter", "context", "driver")

    def __init__(self, driver: LoopDriver) -> None:
        self.driver = driver
        self._result: Result[Any] | None = None
        self._next: Attempt | None = None
        self._mine: Attempt | None = None  # the attempt that the caller's own asyncio task carries out
        self.context = copy_context()
        self._waiter: asyncio.Future[None] | None = None

    async def result(self, task: Task) -> Result[Any]:
        """Submit the task and wait for its result. If the caller is cancelled, the request is cancelled too."""
        driver, me = self.driver, asyncio.current_task()
        assert me is not None
        driver.waiters[self] = None
        self._task = task
        try:
            driver.submit(task)
            while self._result is None:
                attempt, self._next = self._next, None
                if attempt is not None:
                    self._mine = attempt
                    await driver.run_attempt(attempt, me)
                else:
                    self._waiter = driver.loop.create_future()
                    await self._waiter
        except GeneratorExit:  # the coroutine was discarded, perhaps by the garbage collector while the engine's lock is held
            driver.later(self._leave)
            raise
        except BaseException:
            self._leave()
            raise
        self._leave()
        return self._result

    def _leave(self) -> None:
        driver = self.driver
        if self._task.state is not TaskState.DONE:
            driver.withdraw([self._task])
        if self._next is not None:
            driver.ended(self._next, CANCELLED)
        del driver.waiters[self]
        del self._task  # breaks the reference cycle of task and waiter, so that reference counting frees them
        self._mine = None

    def start(self, attempt: Attempt) -> None:
        if self._next is None and (self._mine is None or self._mine.handle is None):
            self._next = attempt
            if self._waiter is not None:
                self._wake()
        else:  # a hedge, while the caller's own asyncio task carries out the first attempt
            self.driver.spawn(attempt, self.context.copy())

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self._result = result_of(task, outcome, source, seconds)
        if self._waiter is not None:
            self._wake()

    def close(self) -> None:
        task = self._task
        error = ClientClosed("the client was closed before the request was done")
        self.driver.withdraw([task], error)
        self.finish(task, error, None, 0.0)

    def abandon(self) -> list[Task]:
        return [self._task]

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
