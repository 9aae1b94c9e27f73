"""The waiters of streams: ``Carrier``, which single streams and batches of streams share, and ``Outlet``, for a single stream.

A stream's attempts are carried out chunk by chunk, and one consumer takes the events that have arrived. The buffer of events is
bounded: if the consumer is slow, no more is read. This module must not know HTTP, nor what the consumer does with the chunks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, cast

from qreward.engine.driver import LoopDriver
from qreward.engine.snapshots import result_of
from qreward.engine.stream_attempt import Receiver, StreamAttempt
from qreward.errors import ClientClosed, QRewardError, RequestError, StreamInterrupted
from qreward.results import Result
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.state import Attempt, BatchFeed, Source, Task, TaskState


class Signal:
    """Wakes all its waiters: one reader and any number of others.

    The futures that its methods return must be awaited immediately. The methods are not coroutines for speed: a reader waits for each
    token.

    Attributes:
        read: True while a reader waits.
    """

    __slots__ = ("_loop", "_reader", "_waiters", "read")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader: asyncio.Future[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.read = False

    def wait_alone(self) -> asyncio.Future[None]:
        """Return the future of the stream's one reader, which must set ``read`` to False when it wakes."""
        self.check_loop()
        if self.read:
            raise RuntimeError("a stream can be read by only one task at a time")
        self.read = True
        reader = self._reader = self._loop.create_future()
        return reader

    def wait(self) -> asyncio.Future[None]:
        self.check_loop()
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def check_loop(self) -> None:
        """Raise ``RuntimeError`` in another event loop, where the wait would never end."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a stream must be read in the event loop that began it, not in another thread or a forked process")

    def give(self) -> None:
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class Carrier:
    """A waiter whose attempts are streams."""

    __slots__ = ("_busy", "_events", "_there", "shell")

    def __init__(self, shell: LoopDriver) -> None:
        self.shell = shell
        self._events: deque[Any] = deque()  # arrived, not yet taken
        self._there = Signal(shell.loop)
        self._busy = 0  # attempts that have not ended

    # the consumer's side

    async def take(self) -> Any:
        """Return the next event, or None at the end. Raises the error that ended the stream after all events are taken."""
        there = self._there
        while not self._events:
            if self.ended():
                return None
            something = there.wait_alone()
            try:
                await something
            finally:
                there.read = False
        event = self._events.popleft()
        self.took()
        return event

    def ended(self) -> bool:
        """Return True if no more events will arrive. Raises the error if one ended the stream."""
        raise NotImplementedError

    def took(self) -> None:
        """Called after an event was taken."""
        raise NotImplementedError

    async def ends(self) -> Any:
        """Wait for the end and return the result."""
        raise NotImplementedError

    def leave(self) -> None:
        """Give up the stream and cancel its requests in flight. Must be called in the event loop's thread."""
        raise NotImplementedError

    def over(self) -> bool:
        """Return True if there is nothing left to give up."""
        raise NotImplementedError

    async def idle(self) -> None:
        """Wait until the connections of cancelled attempts are closed."""
        while self._busy:
            await self._there.wait()

    # Waiter, called by the loop driver

    def carry(self, attempt: Attempt) -> Coroutine[Any, Any, Outcome]:
        self._busy += 1
        return StreamAttempt(attempt, cast("Receiver", self)).run()  # all subclasses are receivers

    # Receiver, called by the stream attempt

    def gone(self) -> None:
        self._busy -= 1
        self._there.give()


AHEAD = 64
"""Chunks that are queued for the consumer before reading pauses. Reading resumes when half of them are taken."""


@dataclass(frozen=True, slots=True)
class StreamRestarted:
    """A stream event: all text before it is void, and the answer starts again, perhaps at another endpoint.

    Attributes:
        text: the text that is void.
        error: the error that interrupted the answer.
    """

    text: str
    error: QRewardError | None


class Outlet(Carrier):
    """The waiter of a single stream, from which its consumer takes the events.

    Attributes:
        begun: an attempt was committed, and its chunks are passed on.
        left: the consumer has given up the stream.
        result: the result, or None while the stream is not finished.
    """

    __slots__ = ("_hushed", "_pieces", "_taken", "_task", "begun", "context", "left", "result")

    def __init__(self, shell: LoopDriver) -> None:
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
        """Submit the stream's task, once. It is sent as soon as an endpoint has a free slot."""
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
        """Wait until an attempt is committed, or the stream has ended."""
        while not (self.begun or self.left or self.result):
            await self._there.wait()

    async def ends(self) -> Result[Any]:
        """Wait for the end. Events that have arrived or still arrive are not kept for ``take``."""
        self._hushed = True
        self._events.clear()
        self._taken.give()
        while self.result is None:
            if self.left:
                raise closed(self.text())
            await self._there.wait()
        return self.result

    def text(self) -> str:
        """Return the text that has arrived since the last restart."""
        return "".join(self._pieces)

    def leave(self) -> None:
        if self.left:
            return
        self.left = True
        self._events.clear()
        if self._task is not None and self._task.state is not TaskState.DONE:
            self.shell.withdraw([self._task])
        self._forget()

    def over(self) -> bool:
        return self.left or (self.result is not None and not self._events)

    # Waiter, called by the loop driver

    def start(self, attempt: Attempt) -> None:
        self.shell.spawn(attempt, self.context.copy())

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        if self.begun and isinstance(outcome, RequestError):
            outcome = interrupted(outcome, self.text())
        self.result = result_of(task, outcome, source, seconds)
        self._forget()

    def read(self, feed: BatchFeed) -> bool:
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
        self._task = None  # breaks the reference cycle of task and waiter, so that reference counting frees them
        self._there.give()
        self._taken.give()

    # Receiver, called by the stream attempt

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
    """Return the error to raise instead of ``error`` after part of a stream was delivered."""
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
    """Return the error for a consumer that reads on after it has given up the stream."""
    return StreamInterrupted("the stream was left before its end, which closed it; read it in one loop, or by one iterator", text=text)
