"""Streams: the batch function is an async generator of lists with one piece per caller, and each caller reads its own stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from qreward.batching.collector import OVER, TAKEN
from qreward.batching.in_flight import InFlightBatch, PendingItem, results_of
from qreward.errors import RequestTimeout

AHEAD = 16  # maximum number of pieces by which the generator is ahead of the fastest reader
KEPT = 1024  # maximum number of pieces that are buffered for a slow reader
_ENDS = (StopIteration, StopAsyncIteration)


class BatchStreamReader(PendingItem):
    """An item whose caller reads a stream. Its ``future`` never gets a result, and is cancelled at the end of the stream."""

    __slots__ = ("_error", "_waiter", "buffer")
    batch: StreamBatch

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.buffer: deque[Any] = deque()
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._waiter is not None

    async def next(self) -> Any:
        """Return the next piece. After the last piece, raise the error of the stream if there is one, and then ``StopAsyncIteration``."""
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
        self.batch.reader_moved()
        return piece

    def put(self, piece: Any) -> None:
        self.buffer.append(piece)
        self.wake()

    def end(self) -> None:
        self.place = OVER
        self.future.cancel()
        self.wake()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self.end()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StreamBatch(InFlightBatch):
    """A batch whose function is an async generator."""

    __slots__ = ("_since", "_unblocked")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unblocked: asyncio.Future[bool] | None = None
        self._since = 0.0

    async def carry_out(self) -> None:
        """Run the generator until it ends or all readers have left."""
        if self.function.serve is not None:
            self.enter_request_contexts()
        try:
            produced = self.function.call([item.value for item in self.items])
            try:
                await self._serve(produced)
            finally:
                await produced.aclose()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def reader_moved(self) -> None:
        """Let the generator continue if no reader blocks it."""
        unblocked = self._unblocked
        if unblocked is None or unblocked.done():
            return
        if not self._blocking():
            unblocked.set_result(True)
        elif not self._starved():
            self._since = unblocked.get_loop().time()  # no reader waits for a piece, so the timeout starts again

    def abandon(self, item: Any) -> None:
        super().abandon(item)
        self.reader_moved()

    async def _serve(self, produced: AsyncGenerator[Any, None]) -> None:
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

    async def _until_unblocked(self) -> None:
        """Wait until the readers have read enough. After ``stream_timeout`` seconds, end the streams that delay the batch."""
        loop, timeout = asyncio.get_running_loop(), self.function.settings.stream_timeout
        self._since = loop.time()
        while True:
            self._unblocked = unblocked = loop.create_future()
            timer = None if timeout is None else loop.call_at(self._since + timeout, _give_up, unblocked)
            try:
                if await unblocked:
                    return None
            finally:
                self._unblocked = None
                if timer is not None:
                    timer.cancel()
            if timeout is not None and loop.time() >= self._since + timeout:
                return self._end_slow(timeout)

    def _active(self) -> list[BatchStreamReader]:
        return [reader for reader in self.items if reader.place is TAKEN]

    def _starved(self) -> bool:
        return any(len(reader.buffer) < AHEAD for reader in self._active())

    def _blocking(self) -> list[BatchStreamReader]:
        """Return the readers that must read before the generator may continue."""
        most = KEPT if self._starved() else AHEAD
        return [reader for reader in self._active() if len(reader.buffer) >= most]

    def _end_slow(self, timeout: float) -> None:
        for reader in self._blocking():
            self.alive -= 1
            self.function.counters.count("expired")
            reader.fail(
                RequestTimeout(
                    f"the stream of {self.function.name} was ended: {len(reader.buffer)} pieces were not read within the stream_timeout of "
                    f"{timeout:g} s, and its batch had to wait; read faster, leave the stream with aclose(), or raise stream_timeout"
                )
            )

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
                reader.put(piece)


def _give_up(unblocked: asyncio.Future[bool]) -> None:
    if not unblocked.done():
        unblocked.set_result(False)
