"""``BatchQueue``: callers submit single items, the queue calls one function for many items, and each caller gets the result of its item."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Generic, Self, TypeAlias, TypeVar, Unpack

from qreward.batching.collector import OVER, TAKEN, WAITING, Collector, SlotRule
from qreward.batching.in_flight import BatchFunction, BatchStreamReader, InFlightBatch, PendingItem, StreamBatch, caller_stream, too_large
from qreward.batching.ray_serve import record_batch
from qreward.batching.settings import BatchRecord, BatchSettings, Options, QueueStats, check_seconds, checked
from qreward.callables import FunctionKind, show_keywords
from qreward.errors import ClientClosed, ConfigError, QueueFull, RequestTimeout
from qreward.settings.policies import Priority, priority_level

_log = logging.getLogger("qreward")
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

    def _begin(self, function: BatchFunction) -> None:
        self._function = function
        self._workers: dict[Hashable, LoopWorker] = {}  # of each event loop, or of each event loop and instance
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[Any, BatchSettings]:
        return self._function.function, self.settings

    def __setstate__(self, state: tuple[Any, BatchSettings]) -> None:
        self._begin(BatchFunction(*state))

    def __repr__(self) -> str:
        waiting, in_flight = self.load()
        return f"BatchQueue({self._function.name}: {waiting} waiting, {in_flight} in flight)"

    @property
    def settings(self) -> BatchSettings:
        return self._function.settings

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._function.closed

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
        self._function.check_kind(streamed=False)
        worker, values, added = self._here(), list(items), list[Any]()
        level, seconds = _checked(priority, timeout)
        worker.admit(len(values))
        for value in values:
            try:
                added.append(worker.add(value, None, level, seconds))
            except Exception as error:  # of ``batch_size_fn`` or ``batch_key_fn``
                added.append(error)
        pending = [item for item in added if isinstance(item, PendingItem)]
        try:
            if pending:
                await asyncio.wait([item.future for item in pending])
        except BaseException:
            for item in pending:
                worker.abandon(item)
            raise
        return [(item.future.exception() or item.future.result()) if isinstance(item, PendingItem) else item for item in added]

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
        if self._function.kind is FunctionKind.STREAMED:
            self._function.check_kind(streamed=False)
        worker = self._here(instance)
        if not self._function.plain:
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
        self._function.check_kind(streamed=True)
        worker = self._here(instance)
        worker.admit(1)
        return caller_stream(worker, worker.add(value, signature_key, level, timeout))

    async def close(self, drain: bool = True) -> None:
        """Reject new items and wait until all items are done, in all event loops that are still running. May be called repeatedly.

        Args:
            drain: True sends the waiting items at once. False fails waiting and running items with ``ClientClosed``. A function in
                a thread cannot be stopped; ``close`` waits for it only as long as a caller waits for its result.
        """
        self._function.closed = True
        self._function.update()
        here = asyncio.get_running_loop()
        workers = self.loop_workers()
        await asyncio.gather(*(worker.close(drain) if worker.loop is here else _close_elsewhere(worker, drain) for worker in workers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    def stats(self) -> QueueStats:
        """Return the state of the queue and its counters, over all event loops."""
        return self._function.counters.snapshot(*self.load(), self.settings.max_batch_size)

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
        self._function.change(settings)
        for worker in self.loop_workers():
            worker.post(worker.pump)

    def loop_workers(self) -> list[LoopWorker]:
        """Return the workers of all event loops that are not closed."""
        return [worker for worker in list(self._workers.values()) if not _dead(worker)]

    def _here(self, instance: Any = None) -> LoopWorker:
        """Return the worker of the running event loop. Each instance has a worker of its own, which is freed with the instance."""
        loop = asyncio.get_running_loop()
        place: Hashable = loop if instance is None else (loop, id(instance))
        worker = self._workers.get(place)
        if worker is None:
            with self._lock:
                for dead in [known for known, its in self._workers.items() if _dead(its)]:
                    del self._workers[dead]
                worker = self._workers[place] = LoopWorker(self._function, loop)
            if instance is not None:
                weakref.finalize(instance, self._workers.pop, place, None).atexit = False
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


def _dead(worker: LoopWorker) -> bool:
    """Return True if the worker's event loop is closed, or belongs to the parent process from which this process was forked."""
    return worker.loop.is_closed() or worker.pid != os.getpid()


def _checked(priority: Any, timeout: Any) -> tuple[int, float | None]:
    if timeout is not None:
        check_seconds("timeout", timeout)
    if priority is NORMAL:
        return int(NORMAL), timeout
    try:
        return priority_level(priority), timeout
    except ValueError as error:
        raise ConfigError(f"priority {error}") from None


class LoopWorker:
    """Runs a queue in one event loop. Only ``post`` may be called from outside this loop."""

    def __init__(self, function: BatchFunction, loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.pid = os.getpid()
        self.clock = loop.time
        self.collector = Collector()
        self.rule = SlotRule(self.collector)
        self.batches: set[InFlightBatch] = set()
        self._context = function.context.copy()  # a copy, because two event loops cannot run in the same context at once
        self._settings = function.settings  # the settings of the next batch
        self._woken = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._idle = asyncio.Event()  # set while the queue is closing and has nothing to do
        function.update()
        function.warn_of_ongoing_requests()

    def admit(self, count: int) -> None:
        """Raise ``ClientClosed`` or ``QueueFull`` if ``count`` items cannot be added, even after starting what may start."""
        function, most = self.function, self.function.settings.max_queue_size
        if function.closed:
            raise ClientClosed(f"the queue of {function.name} is closed; create a new one to submit further items")
        if most is None or self.collector.waiting + count <= most:
            return
        self.pump()
        waiting = self.collector.waiting
        if waiting + count > most:
            function.counters.count("rejected", count)
            message = f"{waiting} items are already waiting for {function.name}"
            message += "" if count == 1 else f"; {count} more do not fit"
            raise QueueFull(f"{message}; submit fewer at once, or set a larger max_queue_size")

    def add(self, value: Any, signature_key: Hashable, level: int, timeout: float | None) -> Any:
        """Add an item, for which :meth:`admit` was called, and return it. A caller that stops waiting for it must call ``abandon``."""
        function, settings, collector = self.function, self.function.settings, self.collector
        if function.plain:
            item: Any = PendingItem(value, self.clock(), signature_key, 1, level)
        else:
            key = function.key_of(value, signature_key)
            cost = 1 if settings.batch_size_fn is None else function.size_of(value)
            kind = BatchStreamReader if function.kind is FunctionKind.STREAMED else PendingItem
            item = kind(value, self.clock(), key, cost, level)
            if function.serve is not None:
                item.request_context = function.serve._get_serve_request_context()
                item.key = key, item.request_context.multiplexed_model_id
        item.future = self.loop.create_future()
        seconds = timeout or settings.timeout
        if seconds is not None:
            item.deadline = item.arrived + seconds
            if item.deadline < self._timer_at:
                self._set_timer(item.deadline, item.arrived)
        if not collector.waiting:
            self._settings = settings
        collector.put(item)
        if not self._woken and len(self.batches) < settings.max_concurrent_batches:
            self._woken = True
            self.loop.call_soon(self.pump, context=self._context)
        return item

    def abandon(self, item: Any) -> None:
        """Remove an item whose caller has stopped waiting, or whose event loop was closed."""
        if item.place is OVER:
            return
        if self.loop.is_closed():
            item.place = OVER
            return
        item.future.cancel()
        self.function.counters.count("cancelled")
        if item.place is WAITING:
            self.collector.remove(item)
            if not self.collector.waiting:
                self.pump()  # the timer may no longer be needed, and a waiting ``close`` may now return
        else:
            item.batch.abandon(item)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function in this worker's event loop, from any thread. If the loop is closed, do nothing."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def pump(self) -> None:
        """Start all batches that may start now, and set the timer for the next due time."""
        self._woken = False
        if not self.collector.waiting and self._timer is None and not self._closing:
            return
        now, at = self.clock(), inf
        if self._timer is not None:  # a timer is set while any item has a deadline
            self._end_late(now)
        while self.collector.waiting and len(self.batches) < self.function.settings.max_concurrent_batches:
            items, at = self._next(now)
            if not items:
                break
            kind = StreamBatch if self.function.kind is FunctionKind.STREAMED else InFlightBatch
            batch = kind(self.function, items, self._settings.max_batch_size, now)
            self.batches.add(batch)
            self.rule.sent(now)
            self._settings = self.function.settings
            self.function.counters.sent([now - item.arrived for item in items])
            batch.task = self.loop.create_task(batch.carry_out(), context=self._context.copy())
            batch.task.add_done_callback(partial(self._ended, batch), context=self._context)
            at = inf
        if self._timer is not None or at != inf:
            self._set_timer(min(at, self.collector.next_deadline()), now)
        if self._closing and not self._busy():
            self._idle.set()

    def _end_late(self, now: float) -> None:
        """Fail the items whose timeout has passed."""
        for item in self.collector.due(now):
            if not item.future.done():
                if waited := item.place is WAITING:
                    self.collector.remove(item)
                where = "it was still waiting for a batch" if waited else "its batch was under way"
                limit = f"the timeout of {item.deadline - item.arrived:g} s (queueing included)"
                self.function.counters.count("expired")
                item.fail(RequestTimeout(f"{self.function.name} gave no result within {limit}; {where}"))
                if not waited:
                    item.batch.abandon(item)

    def _next(self, now: float) -> tuple[list[Any], float]:
        """Return the items of the next batch whose callers have not left, and the time at which to try again if there are none."""
        function, settings = self.function, self.function.settings
        measure = None if settings.batch_size_fn is None else function.measure
        while True:
            if not self._settings.batch_wait_timeout_s:  # a batch that waits for more items keeps the settings with which it began
                self._settings = settings
            slots = settings.max_concurrent_batches
            items, at = self.rule.next(now, self._settings, len(self.batches), slots, measure, self._closing)
            if measure is not None and len(items) == 1 and items[0].cost > self._settings.max_batch_size:
                items[0].fail(too_large())  # the limit was lowered after the item was submitted
            present = [item for item in items if not item.future.done()]
            if len(present) == len(items):
                return items, at
            for item in items:
                if item.future.done() and item.place is TAKEN:  # the caller was cancelled, but has not called ``abandon`` yet
                    item.place = OVER
                    function.counters.count("cancelled")
            self.collector.put_back(present)  # the batch may not be full any more

    def _ended(self, batch: InFlightBatch, task: asyncio.Task[None]) -> None:
        """Free the slot of a batch that has ended, and start the next batch."""
        if batch not in self.batches:
            return
        rest = batch.unstoppable
        if rest is not None and not rest.done():
            rest.add_done_callback(lambda _: self._ended(batch, task), context=self._context)
            self.pump()
            return
        if not task.cancelled():
            task.exception()
        elif batch.error is None:
            batch.fail(asyncio.CancelledError())  # the task was cancelled before its first step
        self.batches.discard(batch)
        seconds = self.clock() - batch.sent_at
        self.function.counters.ended(seconds, batch.failed)
        if batch.alive or batch.error is None:
            self.rule.done(seconds)
        on_batch, name = self.function.settings.on_batch, self.function.name
        if on_batch is not None or self.function.serve is not None:
            items, size, waiting = batch.items, sum(item.cost for item in batch.items), self.collector.waiting
            record_batch(name.rpartition(".")[2], size, batch.limit, batch.sent_at - items[0].arrived, seconds, waiting)
            if on_batch is not None:
                waits = tuple(batch.sent_at - item.arrived for item in items)
                try:
                    on_batch(BatchRecord(name, len(items), size, batch.limit, waits, seconds, waiting, batch.error))
                except Exception:
                    _log.exception("on_batch of %s raised", name)
        batch.items = []  # break the reference cycle, so that reference counting frees the items
        del batch.task
        self.pump()

    def _set_timer(self, at: float, now: float) -> None:
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at == inf else self.loop.call_later(max(0.0, at - now), self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer_at = -inf  # the timer has fired and must be set again
        self.pump()

    async def close(self, drain: bool) -> None:
        """Wait until no item waits and no batch runs. Do not wait for work in a thread or an actor whose callers have all left."""
        self._closing = True
        if not drain:
            message = f"the queue of {self.function.name} was closed before the item was done"
            for item in self.collector.items():
                self.collector.remove(item)
                item.fail(ClientClosed(message))
            for batch in list(self.batches):
                for item in batch.items:
                    if item.place is TAKEN:
                        item.fail(ClientClosed(message))
                batch.unstoppable = None
                if batch.task.done():
                    self._ended(batch, batch.task)
                else:
                    batch.task.cancel()
        self.pump()
        while self._busy():
            self._idle.clear()
            await self._idle.wait()

    def _busy(self) -> bool:
        return self.collector.waiting > 0 or not all(batch.task.done() for batch in self.batches)


show_keywords(BatchQueue.__init__)
