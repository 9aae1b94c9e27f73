"""``BatchQueue``: callers submit single items, the queue calls one function for many items, and each caller gets the result of its item."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Generic, Self, TypeAlias, TypeVar, Unpack

from qreward.batching.collector import Item
from qreward.batching.in_flight import BatchStreamReader, InFlightBatch, StreamBatch, caller_stream
from qreward.batching.settings import BatchCounters, BatchSettings, Options, QueueStats, check_seconds, checked
from qreward.batching.worker import LoopWorker, serve_context, warn_of_ongoing_requests
from qreward.callables import FunctionKind, kind_of, name_of, show_keywords
from qreward.engine import background
from qreward.errors import ConfigError
from qreward.settings.policies import Priority, priority_level

T = TypeVar("T")
R = TypeVar("R")
Listed: TypeAlias = Sequence[R | Exception]
"""One result for each item. An exception in the list is raised for the caller of its item."""
Results: TypeAlias = Awaitable[Listed[R]] | Listed[R]
Yields: TypeAlias = AsyncIterator[Listed[R]]
NORMAL = Priority.NORMAL
LOOP_CHECK_INTERVAL = 0.1
"""Seconds between two checks. In each check, ``close`` tests whether the event loop of another thread is still running."""


class BatchQueue(Generic[T, R]):
    """Merges items that are submitted one by one into calls of one function.

    A batch is sent as soon as fewer than ``max_concurrent_batches`` batches run, with the items that were submitted until then. So a single
    item is sent at once, batches grow with load, and there is no wait time to tune. A queue can be created without a running event loop,
    and can be used from several event loops and threads. ``max_concurrent_batches`` and ``max_queue_size`` apply to each event loop.

    Args:
        function: function that takes a list of items and returns a list with one result per item. It may be an ``async def``, or a ``def``,
            which runs in a thread. For ``stream``, it is an async generator that yields lists with one piece per item. An exception *in*
            a list is raised only for the caller of its item.
        settings: see :class:`~qreward.batching.BatchSettings`.

    Example:
        >>> async def double(numbers):
        ...     return [2 * number for number in numbers]
        >>> async def main():
        ...     async with BatchQueue(double, max_batch_size=32) as queue:
        ...         return await asyncio.gather(*map(queue.submit, range(5)))
        >>> asyncio.run(main())
        [0, 2, 4, 6, 8]
    """

    def __init__(self, function: Callable[[list[T]], Results[R] | Yields[R]], **settings: Unpack[Options]) -> None:
        self.__setstate__((function, checked(settings)))

    def __getstate__(self) -> tuple[Any, BatchSettings]:
        return self.function, self.settings

    def __setstate__(self, state: tuple[Any, BatchSettings]) -> None:
        self.function, self.settings = state
        kind = kind_of(self.function)
        if kind is None:
            raise TypeError("@batch can only be used to decorate functions or methods; this is not callable")
        if kind is FunctionKind.GENERATOR:
            raise TypeError("a batch function that yields must be an `async def`")
        self.is_streamed, self.kind, self.name = kind is FunctionKind.STREAMED, kind, name_of(self.function)
        self.item_type: type[Item] = BatchStreamReader if self.is_streamed else Item
        self.batch_type: type[InFlightBatch] = StreamBatch if self.is_streamed else InFlightBatch
        self.context = copy_context()
        self.closed = False
        self.update()
        self._begin()
        background.watch(self, BatchQueue._begin)

    def _begin(self) -> object:
        """Begin without items and with counters of zero, also in a forked child. Returns what the child inherited."""
        inherited = self.__dict__.copy()
        self.counters = BatchCounters()
        self._workers: dict[Hashable, LoopWorker] = {}  # of each event loop, or of each event loop and instance; any thread may change it
        self._loops = weakref.WeakSet[asyncio.AbstractEventLoop]()  # those that have used this queue
        return inherited

    def __repr__(self) -> str:
        waiting, in_flight = self.load()
        return f"BatchQueue({self.name}: {waiting} waiting, {in_flight} in flight)"

    async def submit(self, item: T, *, priority: int | str = NORMAL, timeout: float | None = None) -> R:
        """Submit one item and return its result.

        Args:
            item: any object.
            priority: 0 (most urgent) to 9, or ``"high"``, ``"normal"``, ``"low"``. 15 seconds of waiting count as much as one level, so
                every item is sent in the end.
            timeout: maximum number of seconds for this item, including its time in the queue. None means the ``timeout`` of the queue.

        Raises:
            RequestTimeout: the timeout has passed. An item that was still waiting is never sent. ``RequestTimeout`` is a ``TimeoutError``.
            QueueFull: ``max_queue_size`` items are already waiting.
            ClientClosed: the queue is closed.
            InvalidResponse: the function did not return one result for each item of the batch.
            RuntimeError: the item is larger than ``max_batch_size``.
            Exception: any exception that the function raised. Each caller receives a separate exception object.
        """
        if priority is NORMAL and timeout is None:  # fast path for the usual case
            return await self.result_of(item)  # type: ignore[no-any-return]
        return await self.result_of(item, None, None, *_checked(priority, timeout))  # type: ignore[no-any-return]

    async def submit_many(
        self, items: Iterable[T], *, priority: int | str = NORMAL, timeout: float | None = None
    ) -> list[R | BaseException]:
        """Submit several items, as ``submit`` does. Return the outcome of each item, in order: a result or an exception.

        Either all items are added to the queue at once, or no item is added.

        Raises:
            QueueFull: the queue has no room for all items.
            ClientClosed: the queue is closed.

        Example:
            >>> async def half(numbers):
            ...     return [ValueError("odd") if number % 2 else number // 2 for number in numbers]
            >>> asyncio.run(BatchQueue(half).submit_many([4, 5, 6]))
            [2, ValueError('odd'), 3]
        """
        self._check_kind(streamed=False)
        worker, values, added = self._here(), list(items), list[Any]()
        level, seconds = _checked(priority, timeout)
        worker.admit(len(values))
        for value in values:
            try:
                added.append(worker.add(value, None, level, seconds))
            except Exception as error:  # of ``batch_size_fn`` or ``batch_key_fn``
                added.append(error)
        pending = [item for item in added if isinstance(item, Item)]
        try:
            if pending:
                await asyncio.wait([item.future for item in pending])
        except BaseException:
            for item in pending:
                worker.abandon(item)
            raise
        errors = [item.future.exception() if isinstance(item, Item) else item for item in added]
        return [item.future.result() if error is None else error for item, error in zip(added, errors, strict=True)]

    def stream(self, item: T, *, priority: int | str = NORMAL, timeout: float | None = None) -> AsyncGenerator[R, None]:
        """Submit one item, as ``submit`` does, and return its stream. The function must be an async generator.

        The caller leaves the batch when it calls ``aclose()``, is cancelled, or drops the stream. If the batch has to wait longer than
        ``stream_timeout`` seconds because this stream is not read, the stream ends with ``RequestTimeout`` after the pieces that were
        received until then.
        """
        return self.stream_of(item, None, None, *_checked(priority, timeout))

    async def result_of(
        self, value: Any, signature_key: Hashable = None, instance: Any = None, level: int = NORMAL, timeout: float | None = None
    ) -> Any:
        """Submit an item, and return its result. Only items of the same ``instance`` with equal ``signature_key`` share a batch."""
        worker = self._here(instance)
        if not self.plain:
            self._check_kind(streamed=False)
            worker.admit(1)
        item = worker.add(value, signature_key, level, timeout)
        try:
            return await item.future
        except BaseException:
            worker.abandon(item)
            raise

    def stream_of(
        self, value: Any, signature_key: Hashable = None, instance: Any = None, level: int = NORMAL, timeout: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Submit an item, as ``result_of`` does, and return its stream."""
        self._check_kind(streamed=True)
        worker = self._here(instance)
        worker.admit(1)
        return caller_stream(worker, worker.add(value, signature_key, level, timeout))

    async def close(self, drain: bool = True) -> None:
        """Reject new items and wait until all items are done, in all event loops that are still running. May be called repeatedly.

        Args:
            drain: True sends the waiting items at once. False fails waiting and running items with ``ClientClosed``. A function in
                a thread cannot be stopped; ``close`` waits for it only as long as a caller waits for its result.
        """
        self.closed = True
        self.update()
        here = asyncio.get_running_loop()
        workers = self.loop_workers()
        await asyncio.gather(*(worker.close(drain) if worker.loop is here else _close_elsewhere(worker, drain) for worker in workers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    def stats(self) -> QueueStats:
        """Return the state of the queue and its counters, over all event loops."""
        return self.counters.snapshot(*self.load(), self.settings.max_batch_size)

    def load(self) -> tuple[int, int]:
        workers = self.loop_workers()
        return sum(worker.collector.waiting for worker in workers), sum(len(worker.batches) for worker in workers)

    def set_max_batch_size(self, size: int) -> None:
        """Set the maximum batch size, as ``change`` does. The batch that fills now may keep the old value."""
        self.change(max_batch_size=size)

    def set_batch_wait_timeout_s(self, seconds: float) -> None:
        """Set the number of seconds for which a batch that is not full waits for more items."""
        self.change(batch_wait_timeout_s=seconds)

    def set_max_concurrent_batches(self, batches: int) -> None:
        """Set the maximum number of running batches. Batches that already run are not stopped."""
        self.change(max_concurrent_batches=batches)

    def change(self, **settings: Unpack[Options]) -> None:
        """Change any settings while the queue is in use.

        Raises:
            TypeError, ConfigError: a value is invalid, as in the constructor. Nothing is changed.
        """
        self.settings = replace(self.settings, **settings)
        self.update()
        if "max_batch_size" in settings:
            warn_of_ongoing_requests(self.name, self.settings)
        for worker in self.loop_workers():
            worker.post(worker.pump)

    def call(self, values: list[Any]) -> Any:
        """Call the function with the values of the items of a batch."""
        return self.function(values)

    def first_of(self, value: Any) -> Any:
        """Return the first argument of a call, from the value of its item."""
        return value

    def size_of(self, values: list[Any]) -> float:
        """Return the size of a batch of these values. Raises ``ConfigError`` if ``batch_size_fn`` returns no size."""
        assert self.settings.batch_size_fn is not None
        size = self.settings.batch_size_fn([self.first_of(value) for value in values])
        if not size >= 0:  # also true for NaN
            raise ConfigError(f"batch_size_fn must return a number >= 0, got {size!r}")
        return size

    def update(self) -> None:
        """Read again what decides how items are added."""
        its = self.settings
        self.serve = serve_context()
        needs_more = its.batch_size_fn or its.batch_key_fn or its.max_queue_size or self.serve
        self.plain = not needs_more and not self.closed and not self.is_streamed

    def _check_kind(self, *, streamed: bool) -> None:
        if streamed != self.is_streamed:
            how = "is an async generator; read stream(item)" if self.is_streamed else "is no async generator; await submit(item)"
            raise TypeError(f"{self.name} {how}")

    def loop_workers(self) -> list[LoopWorker]:
        """Return the workers of all event loops that are not closed."""
        return [worker for worker in list(self._workers.values()) if not worker.loop.is_closed()]

    def _here(self, instance: Any = None) -> LoopWorker:
        """Return the worker of the running event loop. Each instance has a worker of its own, which is freed with the instance."""
        loop = asyncio.get_running_loop()
        place: Hashable = loop if instance is None else (loop, id(instance))
        worker = self._workers.get(place)
        if worker is None:
            if loop not in self._loops:
                self._loops.add(loop)
                for other in list(self._workers):
                    idle = self._workers.get(other)  # None if its instance was freed meanwhile
                    if idle is not None and idle.loop.is_closed():
                        self._workers.pop(other, None)
                        if idle.finalizer is not None:
                            idle.finalizer.detach()  # it would keep the closed event loop alive
            worker = self._workers[place] = LoopWorker(self, loop)
            if instance is not None:
                worker.finalizer = weakref.finalize(instance, self._workers.pop, place, None)
                worker.finalizer.atexit = False
        return worker


async def _close_elsewhere(worker: LoopWorker, drain: bool) -> None:
    """Close a worker in its event loop, and wait until it is closed or its event loop no longer runs."""
    closed: Future[None] = Future()

    def begin() -> None:
        task = worker.loop.create_task(worker.close(drain))
        task.add_done_callback(lambda _: None if closed.cancelled() else closed.set_result(None))

    worker.post(begin)
    waiting = asyncio.wrap_future(closed)
    while worker.loop.is_running() and not waiting.done():  # the other event loop may be stopped at any time
        await asyncio.wait([waiting], timeout=LOOP_CHECK_INTERVAL)
    waiting.cancel()


def _checked(priority: Any, timeout: Any) -> tuple[int, float | None]:
    if timeout is not None:
        check_seconds("timeout", timeout)
    if priority is NORMAL:
        return int(NORMAL), timeout
    try:
        return priority_level(priority), timeout
    except ValueError as error:
        raise ConfigError(f"priority {error}") from None


show_keywords(BatchQueue.__init__)
