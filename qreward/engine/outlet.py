"""The sink of one stream: what has come and was not taken yet, and how it ended.

Bounded: when its consumer is slow, no more is read. Knows pieces and tasks; knows nothing of HTTP or of what pieces become.
"""

from __future__ import annotations

from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from qreward.core.outcome import Answer
from qreward.core.source import Source
from qreward.core.task import Attempt, Feed, State, Task
from qreward.engine.carrier import Carrier, Signal
from qreward.engine.report import result_of
from qreward.engine.shell import Shell
from qreward.errors import ClientClosed, QRewardError, RequestError, StreamInterrupted
from qreward.results import Result

AHEAD = 64
"""Pieces that wait for their consumer before reading pauses; it goes on when half of them are taken."""


@dataclass(frozen=True, slots=True)
class StreamRestarted:
    """An event of a stream: all that came before it is void, the answer begins anew, perhaps at another endpoint.

    Attributes:
        text: what is void.
        error: what broke it off.
    """

    text: str
    error: QRewardError | None


class Outlet(Carrier):
    """The sink of a single stream, and what its consumer takes from.

    Attributes:
        begun: something was given out.
        left: the consumer wants no more.
        result: how it ended, or None.
    """

    __slots__ = ("_hushed", "_pieces", "_taken", "_task", "begun", "context", "left", "result")

    def __init__(self, shell: Shell) -> None:
        super().__init__(shell)
        self.begun = self.left = False
        self.result: Result[Any] | None = None
        self._pieces: list[str] = []
        self._hushed = False
        self._task: Task | None = None
        self.context = copy_context()
        self._taken = Signal(shell.loop)

    # the consumer's side

    def submit(self, task: Task) -> None:
        """Send it, as soon as an endpoint has room. Once."""
        self._task = task
        self.shell.sinks[self] = None
        self.shell.submit(task)

    def ended(self) -> bool:
        if self.left:
            raise closed(self.text())
        if self.result is not None and self.result.error is not None:
            raise self.result.error
        return self.result is not None

    def took(self) -> None:
        if len(self._events) == AHEAD // 2:
            self._taken.give()

    async def begins(self) -> None:
        """Wait until something was given out, or it has ended."""
        while not (self.begun or self.left or self.result):
            await self._there.wait()

    async def ends(self) -> Result[Any]:
        """Wait for the end; what has come and comes is not kept for ``take``."""
        self._hushed = True
        self._events.clear()
        self._taken.give()
        while self.result is None:
            if self.left:
                raise closed(self.text())
            await self._there.wait()
        return self.result

    def text(self) -> str:
        """What has come, since the last restart."""
        return "".join(self._pieces)

    def leave(self) -> None:
        if self.left:
            return
        self.left = True
        self._events.clear()
        if self._task is not None and self._task.state is not State.DONE:
            self.shell.withdraw([self._task])
        self._forget()

    def over(self) -> bool:
        return self.left or (self.result is not None and not self._events)

    # the shell's side

    def start(self, attempt: Attempt) -> None:
        self.shell.spawn(attempt, self.context.copy())

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self.begun and isinstance(outcome, RequestError):
            outcome = interrupted(outcome, self.text())
        self.result = result_of(task, outcome, source, seconds)
        self._forget()

    def read(self, feed: Feed) -> bool:
        raise AssertionError(f"a single stream has no feed: {feed}")

    def close(self) -> None:
        task = self._task
        assert task is not None
        error = ClientClosed("the client was closed before the stream was done")
        self.shell.withdraw([task], error)
        self.finish(task, error, None, 0.0)

    def abandon(self) -> list[Task]:
        assert self._task is not None
        return [self._task]

    def _forget(self) -> None:
        self.shell.sinks.pop(self, None)
        self._task = None  # task and sink refer to each other: let reference counting free them
        self._there.give()
        self._taken.give()

    # the flow's side

    def begin(self, task: Task) -> None:
        if self.begun and not self._hushed:
            self._events.append(StreamRestarted(self.text(), task.last_error))
        self.begun = True
        self._pieces.clear()

    def put(self, _task: Task, chunks: list[Any]) -> bool:
        pieces = self._pieces
        for chunk in chunks:
            if text := chunk.text:
                pieces.append(text)
        if self._hushed:
            return False
        self._events += chunks
        self._there.give()
        return len(self._events) >= AHEAD

    async def room(self) -> None:
        while len(self._events) > AHEAD // 2:
            await self._taken.wait()


def interrupted(error: RequestError, text: str) -> StreamInterrupted:
    """What an error becomes after part of a stream was given out."""
    broken = StreamInterrupted(
        f"the stream broke off after {len(text)} characters: {error}",
        text=text,
        endpoint=error.endpoint,
        model=error.model,
        status_code=error.status_code,
        request_id=error.request_id,
    )
    broken.__cause__ = error
    return broken


def closed(text: str) -> StreamInterrupted:
    """What those get who read on after they have left."""
    return StreamInterrupted("the stream was left before its end, which closed it; read it in one loop, or by one iterator", text=text)
