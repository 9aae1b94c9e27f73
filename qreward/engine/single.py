"""One caller that waits for one task."""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context

from qreward.core.outcome import Answer
from qreward.core.source import Source
from qreward.core.task import Feed, Task
from qreward.engine.report import result_of
from qreward.engine.shell import Shell
from qreward.errors import ClientClosed, QRewardError
from qreward.results import Result


class Single:
    """The sink of a single call."""

    __slots__ = ("_context", "_future", "_task", "shell")
    bulk = False

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._context = copy_context()
        self._future: asyncio.Future[Result[object]] = shell.loop.create_future()

    async def result(self, task: Task) -> Result[object]:
        """Submit the task and wait. If the caller is cancelled, the request is too."""
        shell = self.shell
        shell.sinks[self] = None
        self._task = task
        try:
            shell.submit(task)
            return await self._future
        except BaseException:
            shell.withdraw([task])
            raise
        finally:
            del shell.sinks[self]

    def context(self) -> Context:
        return self._context.copy()

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if not self._future.done():
            self._future.set_result(result_of(task, outcome, source, seconds))

    def read(self, feed: Feed) -> bool:
        raise AssertionError(f"a single call has no feed: {feed}")

    def close(self) -> None:
        if not self._future.done():
            self._future.set_exception(ClientClosed("the client was closed before the request was done"))

    def abandon(self) -> list[Task]:
        return [self._task]
