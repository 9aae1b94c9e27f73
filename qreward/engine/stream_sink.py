"""What the sinks of streams share: attempts carried out piece by piece, and one consumer who takes what has come.

Knows attempts and events; knows nothing of what an event is, or of when there is room for more.

The sink of one stream: what has come and was not taken yet, and how it ended.

Bounded: when its consumer is slow, no more is read. Knows pieces and tasks; knows nothing of HTTP or of what pieces become.
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
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.request import Attempt, BatchFeed, Task, TaskState


class Signal:
    """Wakes all who wait for it: any number of them, and one reader.

    What its methods return is to be awaited at once. They are no coroutines themselves: a reader waits for each token.

    Attributes:
        read: a reader waits.
    """

    __slots__ = ("_loop", "_reader", "_waiters", "read")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader: asyncio.Future[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.read = False

    def wait_alone(self) -> asyncio.Future[None]:
        """Wait as the one reader of a stream, who sets ``read`` back when it is awake."""
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
        """Raise ``RuntimeError`` in another loop, where nothing would ever come."""
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
    """A sink whose attempts are streams."""

    __slots__ = ("_busy", "_events", "_there", "shell")

    def __init__(self, shell: LoopDriver) -> None:
        self.shell = shell
        self._events: deque[Any] = deque()  # have come, and were not taken
        self._there = Signal(shell.loop)
        self._busy = 0  # attempts that have not ended

    # the consumer's side

    async def take(self) -> Any:
        """The next event; None at the end. Raises what ended it, if anything did, once all that came is taken."""
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
        """Nothing more comes. Raises the error, if that is because of one."""
        raise NotImplementedError

    def took(self) -> None:
        """There is an event less."""
        raise NotImplementedError

    async def ends(self) -> Any:
        """Wait for the end, and return what it came to."""
        raise NotImplementedError

    def leave(self) -> None:
        """Want no more: what is under way is stopped. In the loop's own thread."""
        raise NotImplementedError

    def over(self) -> bool:
        """There is nothing to leave."""
        raise NotImplementedError

    async def idle(self) -> None:
        """Wait until the connections of what was stopped are closed."""
        while self._busy:
            await self._there.wait()

    # the shell's side

    def carry(self, attempt: Attempt) -> Coroutine[Any, Any, Outcome]:
        self._busy += 1
        return StreamAttempt(attempt, cast("Receiver", self)).run()  # as all that extend it are

    # the flow's side

    def gone(self) -> None:
        self._busy -= 1
        self._there.give()


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
        if self._task is not None and self._task.state is not TaskState.DONE:
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
