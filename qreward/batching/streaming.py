"""A batch function that yields: each yield is a list with a piece for every caller, and each caller reads a stream of its own.

The generator is advanced only while somebody reads: it waits until a reader has nothing left, and for the slowest of those
that read. Who leaves is waited for no more; when all have left, it is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypeVar

from qreward.batching.backlog import OVER, TAKEN
from qreward.batching.calls import Call
from qreward.batching.outcomes import results_of
from qreward.batching.running import Run

if TYPE_CHECKING:
    from qreward.batching.desk import Desk

R = TypeVar("R")
KEPT = 64
"""Pieces that may wait for a slow reader before the generator waits too."""
_ENDS = (StopIteration, StopAsyncIteration)


class Reader(Call):
    """An item whose caller waits for a stream. Its ``future`` carries nothing; it is cancelled at the end."""

    __slots__ = ("_error", "_waiter", "begun", "buffer")
    run: StreamRun

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.buffer: deque[Any] = deque()
        self.begun = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Somebody is waiting for the next piece."""
        return self._waiter is not None

    async def next(self) -> Any:
        """The next piece; at the end ``StopAsyncIteration``, or once the error that ended it."""
        self.begun = True
        while not self.buffer:
            if self.place is OVER:
                error, self._error = self._error, None
                raise StopAsyncIteration if error is None else error
            self._waiter = self.future.get_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        piece = self.buffer.popleft()
        if len(self.buffer) in {0, KEPT - 1}:
            self.run.stirred()
        return piece

    def put(self, piece: Any) -> None:
        """Give it a piece."""
        self.buffer.append(piece)
        self.wake()

    def end(self) -> None:
        """Nothing more comes; what has come may still be read."""
        self.place = OVER
        self.future.cancel()
        self.wake()

    def fail(self, error: BaseException) -> None:
        """End it with an error."""
        self._error = error
        self.end()

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StreamRun(Run):
    """A batch whose function is an async generator."""

    __slots__ = ("_asked",)
    _asked: asyncio.Future[None] | None

    async def carry_out(self) -> None:
        """Run the generator for as long as somebody reads."""
        self._asked = None
        self.enter_contexts()
        try:
            produced = self.work.call([call.value for call in self.calls])
            try:
                await self._serve(produced)
            finally:
                await produced.aclose()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def stirred(self) -> None:
        """A reader has read or left: perhaps more is wanted now."""
        if self._asked is not None and not self._asked.done() and self._wanted():
            self._asked.set_result(None)

    def left(self, call: Any) -> None:
        """A reader is gone."""
        super().left(call)
        self.stirred()

    async def _serve(self, produced: AsyncGenerator[Any, None]) -> None:
        while self.alive:
            if not self._wanted():
                self._asked = asyncio.get_running_loop().create_future()
                await self._asked
            try:
                pieces = await anext(produced)
            except StopAsyncIteration:
                break
            self._deal(results_of(pieces, len(self.calls)))
        for reader in self.calls:
            if reader.place is not OVER:
                reader.end()

    def _wanted(self) -> bool:
        """A reader has nothing left, and none that reads is too far behind."""
        active = [reader for reader in self.calls if reader.place is TAKEN]
        return any(not reader.buffer for reader in active) and not any(reader.begun and len(reader.buffer) >= KEPT for reader in active)

    def _deal(self, pieces: Any) -> None:
        raised: list[BaseException] = []
        for reader, piece in zip(self.calls, pieces, strict=True):
            if reader.place is OVER:
                continue
            if piece is StopIteration or piece is StopAsyncIteration or isinstance(piece, _ENDS):
                self.alive -= 1
                reader.end()
            elif isinstance(piece, BaseException):
                self.alive -= 1
                self.fail_one(reader, piece, raised)
            else:
                reader.put(piece)


class CallerStream(AsyncGenerator[R, None]):
    """What one caller reads: an async generator. Leaving it (``aclose``, cancellation, letting go of it) is leaving the batch.

    Its item was submitted when this was made. It is read by one task at a time, in the event loop in which it was made.
    """

    __slots__ = ("__weakref__", "_desk", "_reader")

    def __init__(self, desk: Desk, reader: Reader) -> None:
        self._desk = desk
        self._reader = reader

    async def __anext__(self) -> R:
        reader = self._reader
        if reader.busy:
            raise RuntimeError("this stream is being read by another task already")
        try:
            return await reader.next()  # type: ignore[no-any-return]
        except BaseException:
            self._leave()
            raise

    async def asend(self, value: None) -> R:
        """As ``anext``: there is nobody to send a value to.

        Raises:
            TypeError: the value is not None.
        """
        if value is not None:
            raise TypeError("nothing can be sent into a stream of a batch; other callers read the same generator")
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> R:
        """Leave, and raise what is given."""
        self._leave()
        error = typ if val is None else val
        raise error if tb is None else error.with_traceback(tb)

    async def aclose(self) -> None:
        """Leave. What was not read is lost; may be called again."""
        self._leave()

    def __del__(self) -> None:
        if self._reader.place is not OVER:
            self._desk.post(self._desk.left, self._reader)  # the collector may run in any thread

    def _leave(self) -> None:
        self._reader.buffer.clear()
        self._desk.left(self._reader)
        self._reader.wake()
