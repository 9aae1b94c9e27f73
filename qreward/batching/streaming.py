"""Streams: the batch function is an async generator of lists with one piece per caller, and each caller reads its own stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any
from weakref import finalize

from qreward.batching.collector import OVER, TAKEN
from qreward.batching.in_flight import InFlightBatch, PendingItem, results_of
from qreward.errors import RequestTimeout

AHEAD = 16  # maximum number of pieces by which the generator is ahead of the fastest reader
KEPT = 1024  # maximum number of pieces that are buffered for a slow reader
_ENDS = (StopIteration, StopAsyncIteration)


class BatchStreamReader(PendingItem):
    """An item whose caller reads a stream. Its ``future`` never gets a result, and is cancelled at the end of the stream."""

    __slots__ = ("buffer", "error", "waiter")
    batch: StreamBatch

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.buffer: deque[Any] = deque()
        self.waiter: asyncio.Future[None] | None = None  # of the reading task
        self.error: BaseException | None = None  # raised after the last piece

    def end(self) -> None:
        self.place = OVER
        self.future.cancel()
        self.wake()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.end()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def caller_stream(worker: Any, reader: BatchStreamReader) -> AsyncGenerator[Any, None]:
    """Return the stream of one caller, who leaves the batch when the stream is closed, cancelled or dropped."""

    async def pieces() -> AsyncGenerator[Any, None]:
        try:
            while reader.buffer or reader.place is not OVER:
                if reader.buffer:
                    piece = reader.buffer.popleft()
                    reader.batch.reader_moved()
                    yield piece
                else:
                    reader.waiter = worker.loop.create_future()
                    await reader.waiter
            error, reader.error = reader.error, None
            if error is not None:
                raise error
        finally:
            reader.buffer.clear()
            worker.abandon(reader)

    stream = pieces()
    finalize(stream, _dropped, worker, reader).atexit = False
    return stream


def _dropped(worker: Any, reader: BatchStreamReader) -> None:
    if reader.place is not OVER:  # the stream was never read
        worker.post(worker.abandon, reader)  # the garbage collector may run in any thread


class StreamBatch(InFlightBatch):
    """A batch whose function is an async generator."""

    __slots__ = ("_moved",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._moved = asyncio.Event()  # not set while the generator waits for the readers
        self._moved.set()

    async def carry_out(self) -> None:
        """Run the generator until it ends or all readers have left."""
        if self.function.serve is not None:
            self.enter_request_contexts()
        try:
            produced = self.function.call([item.value for item in self.items])
            try:
                while self.alive:
                    if self._blocking():
                        await self._until_unblocked()
                        continue
                    try:
                        pieces = await anext(produced)
                    except StopAsyncIteration:
                        break
                    self._deal(results_of(pieces, len(self.items)))
                for reader in self.items:
                    if reader.place is not OVER:
                        reader.end()
            finally:
                await produced.aclose()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def _deal(self, pieces: Any) -> None:
        raised: list[BaseException] = []
        for reader, piece in zip(self.items, pieces, strict=True):
            if reader.place is OVER:
                continue
            if piece is StopIteration or piece is StopAsyncIteration or isinstance(piece, _ENDS):
                self.alive -= 1
                reader.end()
            elif isinstance(piece, BaseException):
                self.alive -= 1
                self.fail_one(reader, piece, raised)
            else:
                reader.buffer.append(piece)
                reader.wake()

    def _starved(self) -> bool:
        return any(len(reader.buffer) < AHEAD for reader in self.items if reader.place is TAKEN)

    def _blocking(self) -> list[BatchStreamReader]:
        """Return the readers that must read before the generator may continue."""
        most = KEPT if self._starved() else AHEAD
        return [reader for reader in self.items if reader.place is TAKEN and len(reader.buffer) >= most]

    def reader_moved(self) -> None:
        """Let the generator continue if no reader blocks it. While no reader waits for a piece, the timeout starts again."""
        if not self._moved.is_set() and not (self._starved() and self._blocking()):
            self._moved.set()

    def abandon(self, item: Any) -> None:
        super().abandon(item)
        self.reader_moved()

    async def _until_unblocked(self) -> None:
        """Wait until the readers have read enough. After ``stream_timeout`` seconds, end the streams that delay the batch."""
        timeout = self.function.settings.stream_timeout
        self._moved.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._moved.wait()
        except TimeoutError:
            for reader in self._blocking():
                self.alive -= 1
                self.function.counters.count("expired")
                reader.fail(
                    RequestTimeout(
                        f"the stream of {self.function.name} was ended: {len(reader.buffer)} pieces were not read within the "
                        f"stream_timeout of {timeout:g} s, and its batch had to wait; read faster, leave the stream with aclose(), or "
                        "raise stream_timeout"
                    )
                )
        finally:
            self._moved.set()
