"""A batch that is running: its items, the batch function, and the result, error or stream of each caller."""

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import finalize

from qreward.batching.collector import OVER, TAKEN, Item, halves
from qreward.callables import FunctionKind
from qreward.engine.background import SHARED
from qreward.errors import InvalidResponse, QueueFull, RequestError, RequestTimeout
from qreward.options import is_table

_HERE = str(Path(__file__).parent)
_ENDINGS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


def invalid_length(message: str) -> InvalidResponse:
    """Return the error of a list of the wrong length. In a process with Ray Serve, it is a ``RayServeException`` as well."""
    exceptions = sys.modules.get("ray.serve.exceptions")
    return InvalidResponse(message) if exceptions is None else _both(exceptions.RayServeException)(message)


@cache
def _both(base: type[Exception]) -> type[InvalidResponse]:
    return type("InvalidResponse", (InvalidResponse, base), {})


def results_of(returned: Any, count: int) -> Sequence[Any]:
    """Return the results of a batch function as a sequence. Raises ``InvalidResponse`` if the number of results is not ``count``."""
    results = returned
    if type(returned) is not list and type(returned) is not tuple:
        if isinstance(returned, str | bytes | bytearray | Mapping | Set) or is_table(returned) or not hasattr(returned, "__len__"):
            raise TypeError(f"the batch function must return a list with one result for each item, not a {type(returned).__name__}")
        results = list(returned)
    if len(results) != count:
        raise invalid_length(
            f"Batched function doesn't preserve batch size. The input list has length {count} but the returned list has "
            f"length {len(results)}."
        )
    return results  # type: ignore[no-any-return]


def caller_error(error: BaseException, name: str) -> BaseException:
    """Return the error that a caller receives: not one that would end the caller's task, event loop or iteration."""
    shown: Exception
    if isinstance(error, StopIteration | StopAsyncIteration):
        shown = RuntimeError(f"{name} raised {type(error).__name__}")
    elif isinstance(error, _ENDINGS):
        shown = RequestError(f"the batch was not finished: {type(error).__name__} in {name}; the item may be submitted again")
    else:
        return error
    shown.__cause__ = error
    return shown


def own_error(error: BaseException) -> BaseException:
    """Return a copy of an exception for one caller, with the original as the cause; a ``RequestError`` if copying fails."""
    made: BaseException | None = None
    for bare in (False, True):  # a bare copy calls no ``__init__``, whose parameters may differ from ``error.args``
        with suppress(Exception):
            made = type(error).__new__(type(error), *error.args) if bare else copy.copy(error)
            made.__dict__.update(error.__dict__)
            if type(made) is type(error) and made is not error and str(made) == str(error) and len(made.args) == len(error.args):
                break
    else:
        try:
            made = RequestError(f"{type(error).__name__}: {error}")
        except Exception:
            made = RequestError(f"{type(error).__name__}: (it cannot be shown)")
    if hasattr(made, "__notes__"):
        made.__notes__ = list(made.__notes__)
    made.__cause__ = error
    return made


_BATCH: ContextVar[InFlightBatch | None] = ContextVar("qreward_batch", default=None)


@dataclass(slots=True, eq=False, repr=False)
class InFlightBatch:
    """A batch that has been sent. It makes one call of the batch function, in a separate task."""

    queue: Any  # the BatchQueue
    items: list[Any]
    limit: float  # the maximum size of the batch
    sent_at: float
    alive: int = 0  # callers that have not left
    failed: int = 0  # callers that received an error from the function
    error: BaseException | None = None  # of the whole batch
    unstoppable: asyncio.Future[Any] | None = None  # work in a thread or an actor: the slot stays occupied until it is done
    task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.alive = len(self.items)
        for item in self.items:
            item.batch = self

    async def carry_out(self) -> None:
        """Run the function, and give each caller its result or the error of its item. If it raises, the worker calls ``fail``."""
        queue, values = self.queue, [item.value for item in self.items]
        _BATCH.set(self)
        if queue.serve is not None:
            self.enter_request_contexts()
        results = await (queue.call(values) if queue.kind is FunctionKind.AWAITED else in_worker(partial(queue.call, values)))
        raised: list[BaseException] = []
        for item, result in zip(self.items, results_of(results, len(values)), strict=True):
            if isinstance(result, BaseException):
                self.fail_one(item, result, raised)
                continue
            item.state = OVER
            future = item.future
            if not future.done():
                future.set_result(result)

    def enter_request_contexts(self) -> None:
        """Let Ray Serve's functions, such as ``get_multiplexed_model_id``, find the request contexts of the items."""
        self.queue.serve._set_batch_request_context([item.request_context for item in self.items])

    def fail_one(self, item: Any, error: BaseException, raised: list[BaseException]) -> None:
        """Raise an error for one caller. If another caller has already received this exception object, the caller gets a copy."""
        if item.state is not OVER:
            self.failed += 1
            shown = caller_error(error, self.queue.name)
            item.fail(own_error(shown) if any(error is other for other in raised) else shown)
            raised.append(error)

    def fail(self, error: BaseException) -> None:
        """Fail the whole batch. Each caller without a result receives a separate exception object."""
        self.error = error
        while (trace := error.__traceback__) is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
            error.__traceback__ = trace.tb_next  # frames of this package do not help the reader, and would keep all items alive
        shown = caller_error(error, self.queue.name)
        unanswered = [item for item in self.items if item.state is not OVER]
        self.failed += len(unanswered)
        for item in unanswered:
            item.fail(shown if len(unanswered) == 1 else own_error(shown))

    def abandon(self, item: Any) -> None:
        """Record that a caller has left. When all callers have left, cancel the batch."""
        item.state = OVER
        self.alive -= 1
        if not self.alive:
            self.task.cancel()


async def in_worker(function: Callable[[], Any]) -> Any:
    """Run a function in a daemon thread, which blocks neither the event loop nor the exit of the process, and return its result."""
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def job() -> Callable[[], object]:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(function), None)
        except BaseException as error:
            outcome = (None, error)  # a future cannot hold a StopIteration

        def report() -> None:
            with suppress(RuntimeError):  # the loop is closed, so no caller is waiting
                loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(outcome))

        return report

    if not SHARED.run(job):
        raise QueueFull("every worker thread is busy, perhaps with calls that hang; give the function a time limit of its own")
    results, error = await unstoppable(done)
    if error is not None:
        raise error
    return await results if inspect.isawaitable(results) else results  # a plain function may return a coroutine


async def isolate(call: Callable[[Any], Any], items: Any, outcomes_of: Callable[[BaseException, Any], list[Any] | None]) -> list[Any]:
    """Return the outcome of each item. A list for which ``await call(items)`` raises is split in halves, one after the other."""
    try:
        return await call(items)  # type: ignore[no-any-return]
    except BaseException as error:
        outcomes = outcomes_of(error, items)
        if outcomes is not None:
            return outcomes
    return [outcome for half in halves(items) for outcome in await isolate(call, half, outcomes_of)]


async def unstoppable(future: asyncio.Future[Any]) -> Any:
    """Await a future that is not cancelled with the batch. The slot of the batch stays occupied until the future is done."""
    batch = _BATCH.get()
    if batch is not None:
        batch.unstoppable = future
    return await asyncio.shield(future)


AHEAD = 16  # maximum number of pieces by which the generator is ahead of the fastest reader
KEPT = 1024  # maximum number of pieces that are buffered for a slow reader
_ENDS = (StopIteration, StopAsyncIteration)


class BatchStreamReader(Item):
    """An item whose caller reads a stream. Its ``future`` never gets a result, and is cancelled at the end of the stream."""

    __slots__ = ("buffer", "error", "waiter")
    batch: StreamBatch

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.buffer: deque[Any] = deque()
        self.waiter: asyncio.Future[None] | None = None  # of the reading task
        self.error: BaseException | None = None  # raised after the last piece

    def end(self) -> None:
        self.state = OVER
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
            while reader.buffer or reader.state is not OVER:
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
    # a stream that was never read leaves its batch when it is collected, in any thread
    finalize(stream, lambda: reader.state is OVER or worker.post(worker.abandon, reader)).atexit = False
    return stream


class StreamBatch(InFlightBatch):
    """A batch whose function is an async generator."""

    __slots__ = ("_moved",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._moved = asyncio.Event()  # not set while the generator waits for the readers
        self._moved.set()

    async def carry_out(self) -> None:
        """Run the generator until it ends or all readers have left."""
        if self.queue.serve is not None:
            self.enter_request_contexts()
        produced = self.queue.call([item.value for item in self.items])
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
                if reader.state is not OVER:
                    reader.end()
        finally:
            await produced.aclose()

    def _deal(self, pieces: Any) -> None:
        raised: list[BaseException] = []
        for reader, piece in zip(self.items, pieces, strict=True):
            if reader.state is OVER:
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
        return any(len(reader.buffer) < AHEAD for reader in self.items if reader.state is TAKEN)

    def _blocking(self) -> list[BatchStreamReader]:
        """Return the readers that must read before the generator may continue."""
        most = KEPT if self._starved() else AHEAD
        return [reader for reader in self.items if reader.state is TAKEN and len(reader.buffer) >= most]

    def reader_moved(self) -> None:
        """Let the generator continue if no reader blocks it. While no reader waits for a piece, the timeout starts again."""
        if not self._moved.is_set() and not (self._starved() and self._blocking()):
            self._moved.set()

    def abandon(self, item: Any) -> None:
        super().abandon(item)
        self.reader_moved()

    async def _until_unblocked(self) -> None:
        """Wait until the readers have read enough. After ``stream_timeout`` seconds, end the streams that delay the batch."""
        timeout = self.queue.settings.stream_timeout
        self._moved.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._moved.wait()
        except TimeoutError:
            for reader in self._blocking():
                self.alive -= 1
                self.queue.counters.count(expired=1)
                reader.fail(
                    RequestTimeout(
                        f"the stream of {self.queue.name} was ended: {len(reader.buffer)} pieces were not read within the "
                        f"stream_timeout of {timeout:g} s, and its batch had to wait; read faster, leave the stream with aclose(), or "
                        "raise stream_timeout"
                    )
                )
        finally:
            self._moved.set()
