"""Streams of batches: the batch function is an async generator that yields lists with one piece per caller, and each caller reads its
own stream.

The generator runs a few pieces ahead of its readers and then waits for them. Pieces for a slower reader are buffered. When that
buffer is full, the generator waits for the slow reader too, but at most ``stream_timeout`` seconds. Readers that leave are not
waited for. When all readers have left, the generator is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from qreward.batching.backlog import OVER, TAKEN
from qreward.batching.in_flight import InFlightBatch, PendingItem, results_of
from qreward.errors import RequestTimeout

if TYPE_CHECKING:
    from qreward.batching.worker import LoopWorker

R = TypeVar("R")
AHEAD = 16
"""Maximum number of pieces by which the generator is ahead of the fastest reader."""
KEPT = 1024
"""Maximum number of pieces buffered for a slow reader while other readers continue."""
_ENDS = (StopIteration, StopAsyncIteration)


class BatchStreamReader(PendingItem):
    """An item whose caller reads a stream. Its ``future`` carries no result, and is cancelled at the end of the stream."""

    __slots__ = ("_error", "_waiter", "buffer")
    run: StreamRun

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.buffer: deque[Any] = deque()
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a task is waiting for the next piece."""
        return self._waiter is not None

    async def next(self) -> Any:
        """Return the next piece. At the end, raise the error that ended the stream, once, and then ``StopAsyncIteration``."""
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
        self.run.stirred()
        return piece

    def put(self, piece: Any) -> None:
        """Add a piece to the buffer."""
        self.buffer.append(piece)
        self.wake()

    def end(self) -> None:
        """End the stream. Buffered pieces can still be read."""
        self.place = OVER
        self.future.cancel()
        self.wake()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error."""
        self._error = error
        self.end()

    def wake(self) -> None:
        """Wake the waiting task, so that it checks the buffer and the state again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StreamRun(InFlightBatch):
    """A batch whose function is an async generator."""

    __slots__ = ("_room", "_since")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._room: asyncio.Future[bool] | None = None
        self._since = 0.0

    async def carry_out(self) -> None:
        """Run the generator as long as a reader is left."""
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
        """Check, after a reader has read or left, whether the generator may continue."""
        room = self._room
        if room is None or room.done():
            return
        if not self._blocking():
            room.set_result(True)
        elif not self._starved():
            self._since = room.get_loop().time()  # no reader is held up, and one has just read

    def left(self, call: Any) -> None:
        """Remove a reader that has left."""
        super().left(call)
        self.stirred()

    async def _serve(self, produced: AsyncGenerator[Any, None]) -> None:
        while self.alive:
            if self._blocking():
                await self._make_room()
                continue
            try:
                pieces = await anext(produced)
            except StopAsyncIteration:
                break
            self._deal(results_of(pieces, len(self.calls)))
        for reader in self.calls:
            if reader.place is not OVER:
                reader.end()

    async def _make_room(self) -> None:
        """Wait until the readers have read enough. Readers that hold up the batch for ``stream_timeout`` seconds are ended."""
        loop, patience = asyncio.get_running_loop(), self.work.settings.stream_timeout
        self._since = loop.time()
        while True:
            self._room = room = loop.create_future()
            timer = None if patience is None else loop.call_at(self._since + patience, _give_up, room)
            try:
                if await room:
                    return None
            finally:
                self._room = None
                if timer is not None:
                    timer.cancel()
            if patience is not None and loop.time() >= self._since + patience:
                return self._end_slow(patience)

    def _active(self) -> list[BatchStreamReader]:
        return [reader for reader in self.calls if reader.place is TAKEN]

    def _starved(self) -> bool:
        """Whether a reader has fewer than ``AHEAD`` pieces left to read."""
        return any(len(reader.buffer) < AHEAD for reader in self._active())

    def _blocking(self) -> list[BatchStreamReader]:
        """The readers that must read before the generator may continue."""
        most = KEPT if self._starved() else AHEAD
        return [reader for reader in self._active() if len(reader.buffer) >= most]

    def _end_slow(self, patience: float) -> None:
        for reader in self._blocking():
            self.alive -= 1
            self.work.tally.count("expired")
            reader.fail(
                RequestTimeout(
                    f"the stream of {self.work.name} was ended: {len(reader.buffer)} pieces were not read within the stream_timeout of "
                    f"{patience:g} s, while its batch waited for that; read faster, leave the stream with aclose(), or raise stream_timeout"
                )
            )

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
    """The stream of one caller, an async generator. The caller leaves the batch by ``aclose``, by cancellation or by dropping the stream.

    The item was submitted when this object was created. The stream can be read by one task at a time, in the event loop in which it was
    created.
    """

    __slots__ = ("__weakref__", "_loop_worker", "_reader")

    def __init__(self, loop_worker: LoopWorker, reader: BatchStreamReader) -> None:
        self._loop_worker = loop_worker
        self._reader = reader

    def __anext__(self) -> Coroutine[Any, Any, R]:
        return _Next(self)

    async def _next(self) -> R:
        reader = self._reader
        if reader.busy:
            raise RuntimeError("this stream is being read by another task already")
        try:
            return await reader.next()  # type: ignore[no-any-return]
        except BaseException:
            self._leave()
            raise

    async def asend(self, value: None) -> R:
        """Like ``anext``. No value can be sent, because all callers read the same generator.

        Raises:
            TypeError: the value is not None.
        """
        if value is not None:
            raise TypeError("nothing can be sent into a stream of a batch; other callers read the same generator")
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> R:
        """Leave the batch and raise the given exception."""
        self._leave()
        error = typ if val is None else val
        raise error if tb is None else error.with_traceback(tb)

    async def aclose(self) -> None:
        """Leave the batch. Unread pieces are lost. May be called more than once."""
        self._leave()

    def __del__(self) -> None:
        if self._reader.place is not OVER:
            self._loop_worker.post(self._loop_worker.left, self._reader)  # the garbage collector may run in any thread

    def _leave(self) -> None:
        self._reader.buffer.clear()
        self._loop_worker.left(self._reader)
        self._reader.wake()


class _Next(Coroutine[Any, Any, R]):
    """The next piece. If its task is cancelled before the first step, the coroutine never runs; the stream is left all the same."""

    __slots__ = ("_begun", "_coroutine", "_stream")

    def __init__(self, stream: CallerStream[R]) -> None:
        self._begun = False
        self._coroutine = stream._next()
        self._stream = stream

    def send(self, value: None) -> Any:
        self._begun = True
        return self._coroutine.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:  # noqa: ARG002 - the exception carries its traceback
        if not self._begun:
            self._stream._leave()
        return self._coroutine.throw(typ if val is None else val)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, R]:
        return self._coroutine.__await__()


def _give_up(room: asyncio.Future[bool]) -> None:
    if not room.done():
        room.set_result(False)
