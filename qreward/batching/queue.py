"""``BatchQueue``: callers submit single items, the queue calls one function for many of them, and each caller gets its own result.

The queue has one worker per event loop. The workers share the function, its settings and its counters, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar, Unpack

from qreward.batching.in_flight import BatchFunction, FunctionKind, PendingItem
from qreward.batching.policy import BatchPolicy
from qreward.batching.settings import BatchSettings, Options, budget, checked
from qreward.batching.stats import QueueStats
from qreward.batching.streaming import CallerStream
from qreward.batching.typing import Results, Yields
from qreward.batching.worker import LoopWorker
from qreward.errors import ConfigError
from qreward.settings.policies import Priority, priority_level

T = TypeVar("T")
R = TypeVar("R")
NORMAL = Priority.NORMAL
LOOK = 0.1
"""Seconds between two checks of ``close`` whether the event loop of another thread is still running."""


class BatchQueue(Generic[T, R]):
    """Merges items that are submitted one by one into calls of one function.

    A batch is sent as soon as a slot is free, with the items submitted until then. While all slots are busy, the next batch fills. A
    lone item is therefore sent at once, and batches grow with load, without a wait time to tune.

    Args:
        function: takes a list of items and returns a list with one result per item. It is an ``async def``; a ``def``, which runs in a
            thread; or an async generator of such lists, for ``stream``. An exception *in* the list is raised for that item alone.
        settings: see :class:`~qreward.batching.Settings`.

    Attributes:
        settings: the current settings.

    A queue can be created without a running event loop, and can be used from several event loops and threads.
    ``max_concurrent_batches`` and ``max_queue_size`` apply to each event loop.

    Example:
        >>> async def double(numbers):
        ...     return [2 * number for number in numbers]
        >>> async def main():
        ...     async with BatchQueue(double, max_batch_size=32) as queue:
        ...         return await asyncio.gather(*map(queue.submit, range(5)))
        >>> asyncio.run(main())
        [0, 2, 4, 6, 8]
    """

    def __init__(
        self,
        function: Callable[[list[T]], Results[R] | Yields[R]],
        **settings: Unpack[Options],
    ) -> None:
        self._function = function
        self._begin(BatchFunction(function, checked(settings)))

    @classmethod
    def of(cls, work: BatchFunction) -> BatchQueue[Any, Any]:
        """Create a queue for a batch function that it shares with other queues."""
        queue: BatchQueue[Any, Any] = cls.__new__(cls)
        queue._begin(work)
        return queue

    def _begin(self, work: BatchFunction) -> None:
        self._work = work
        self._loop_workers: dict[asyncio.AbstractEventLoop, LoopWorker] = {}
        self._latest: LoopWorker | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._function, vars(self.settings))

    def __repr__(self) -> str:
        stats = self.stats()
        return f"BatchQueue({self._work.name}: {stats.waiting} waiting, {stats.in_flight} in flight)"

    @property
    def settings(self) -> BatchSettings:
        return self._work.settings

    async def submit(self, item: T, *, priority: int | str = NORMAL, timeout: float | None = None) -> R:
        """Submit one item and return its result.

        Args:
            item: any object.
            priority: 0 (most urgent) to 9, or ``"high"``, ``"normal"``, ``"low"``. One level outweighs 15 seconds of waiting, so that no
                item starves.
            timeout: maximum seconds for this item, queueing included. None means the ``timeout`` of the queue.

        Raises:
            RequestTimeout: the timeout has passed (a ``TimeoutError``). An item that was still waiting is never sent.
            QueueFull: ``max_queue_size`` items are waiting already.
            ClientClosed: the queue is closed.
            InvalidResponse: the function returned a different number of results.
            RuntimeError: the item is larger than ``max_batch_size``.
            Exception: raised by the function; each caller receives an exception object of its own.
        """
        return await self.answer(item, None, _level(priority), None if timeout is None else budget(timeout))  # type: ignore[no-any-return]

    async def submit_many(
        self, items: Iterable[T], *, priority: int | str = NORMAL, timeout: float | None = None
    ) -> list[R | BaseException]:
        """Submit several items and return the outcome of each, in order: its result or its exception.

        Either all items are added to the queue, before anything is awaited, or none. They may be sent in several batches, together with
        other items.

        Args:
            items: the items, in the order in which they are to be sent.
            priority: as for ``submit``.
            timeout: as for ``submit``; applies to each item.

        Raises:
            QueueFull: ``max_queue_size`` does not allow all of them.
            ClientClosed: the queue is closed.

        Example:
            >>> async def half(numbers):
            ...     return [ValueError("odd") if number % 2 else number // 2 for number in numbers]
            >>> asyncio.run(BatchQueue(half).submit_many([4, 5, 6]))
            [2, ValueError('odd'), 3]
        """
        if self._work.kind is FunctionKind.STREAMED:
            raise TypeError(f"{self._work.name} is an async generator; read stream(item)")
        loop_worker = self._here()
        calls = loop_worker.enter_many(list(items), _level(priority), None if timeout is None else budget(timeout))
        futures = [call.future for call in calls if isinstance(call, PendingItem)]
        try:
            if futures:
                await asyncio.wait(futures)
        except BaseException:
            for call in calls:
                if isinstance(call, PendingItem):
                    loop_worker.left(call)
            raise
        return [(call.future.exception() or call.future.result()) if isinstance(call, PendingItem) else call for call in calls]

    def stream(self, item: T, *, priority: int | str = NORMAL, timeout: float | None = None) -> AsyncGenerator[R, None]:
        """Submit one item at once and return its stream. The function must be an async generator.

        Arguments and errors are those of ``submit``. Read the stream, or leave it with ``aclose()``. A stream that is unread while its
        batch waits for it ends after ``stream_timeout`` seconds: the pieces received until then can still be read, and ``RequestTimeout``
        follows them.
        """
        return self.answers(item, None, _level(priority), None if timeout is None else budget(timeout))

    async def answer(self, value: Any, shape: Hashable, level: int = NORMAL, timeout: float | None = None) -> Any:
        """Like ``submit``, for arguments that have been checked; ``shape`` becomes a part of the batch key."""
        if self._work.kind is FunctionKind.STREAMED:
            raise TypeError(f"{self._work.name} is an async generator; read stream(item)")
        loop_worker = self._here()
        call = loop_worker.enter(value, shape, level, timeout)
        try:
            return await call.future
        except BaseException:
            loop_worker.left(call)
            raise

    def answers(self, value: Any, shape: Hashable, level: int = NORMAL, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        """Like ``stream``, for arguments that have been checked; ``shape`` becomes a part of the batch key."""
        if self._work.kind is not FunctionKind.STREAMED:
            raise TypeError(f"{self._work.name} is no async generator; await submit(item)")
        loop_worker = self._here()
        return CallerStream(loop_worker, loop_worker.enter(value, shape, level, timeout))

    async def close(self, drain: bool = True) -> None:
        """Reject new items and wait until all items are done, in all event loops that are still running. May be called more than once.

        Args:
            drain: True sends the waiting items, without waiting for fuller batches. False fails waiting and running items with
                ``ClientClosed``.

        A function that runs in a thread cannot be stopped. ``close`` waits for it only while one of its callers does.
        """
        self._work.close()
        await close_loop_workers(self.loop_workers(), drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    def stats(self) -> QueueStats:
        """The state of the queue and its counters, over all event loops."""
        return stats_of(self._work, self.loop_workers())

    def set_max_batch_size(self, size: int) -> None:
        """Set the maximum batch size. Like all setters, this applies to batches that have not begun to form.

        Raises:
            TypeError, ConfigError: the value is invalid, as in the constructor. Nothing is changed.
        """
        self.change(max_batch_size=size)

    def set_batch_wait_timeout_s(self, seconds: float) -> None:
        """Set how long a batch waits for more items, in seconds."""
        self.change(batch_wait_timeout_s=seconds)

    def set_max_concurrent_batches(self, batches: int) -> None:
        """Set the maximum number of running batches. If more are running, none of them is stopped."""
        self.change(max_concurrent_batches=batches)

    def change(self, **settings: Unpack[Options]) -> None:
        """Change any settings except ``clock`` while the queue is in use.

        Raises:
            TypeError, ConfigError: a value is invalid, as in the constructor. Nothing is changed.
        """
        change(self._work, settings, self.loop_workers())

    def loop_workers(self) -> list[LoopWorker]:
        """The workers, one for each event loop that has used the queue and is not closed."""
        return [loop_worker for loop_worker in list(self._loop_workers.values()) if not _dead(loop_worker)]

    def _here(self) -> LoopWorker:
        loop = asyncio.get_running_loop()
        loop_worker = self._latest
        return loop_worker if loop_worker is not None and loop_worker.loop is loop else self._look_up(loop)

    def _look_up(self, loop: asyncio.AbstractEventLoop) -> LoopWorker:
        with self._lock:
            loop_worker = self._loop_workers.get(loop)
            if loop_worker is None:
                for gone in [known for known, its in self._loop_workers.items() if _dead(its)]:
                    del self._loop_workers[gone]
                loop_worker = self._loop_workers[loop] = LoopWorker(self._work, loop)
            self._latest = loop_worker
            return loop_worker


def stats_of(work: BatchFunction, loop_workers: list[LoopWorker]) -> QueueStats:
    """The combined stats of several workers."""
    limit = max((loop_worker.forming.limit(work.settings) for loop_worker in loop_workers), default=BatchPolicy().limit(work.settings))
    waiting, in_flight = (
        sum(loop_worker.backlog.waiting for loop_worker in loop_workers),
        sum(len(loop_worker.runs) for loop_worker in loop_workers),
    )
    return work.tally.snapshot(waiting, in_flight, limit)


def change(work: BatchFunction, settings: Any, loop_workers: list[LoopWorker]) -> None:
    """Change the settings of a batch function, and let its workers apply them."""
    if "clock" in settings:
        raise ConfigError("clock cannot be changed; make a new queue")
    work.change(**settings)
    for loop_worker in loop_workers:
        loop_worker.post(loop_worker.wake)


async def close_loop_workers(loop_workers: list[LoopWorker], drain: bool) -> None:
    """Close workers, each in its own event loop. A worker whose event loop is not running is not waited for."""
    here = asyncio.get_running_loop()
    await asyncio.gather(
        *(loop_worker.close(drain) if loop_worker.loop is here else _close_elsewhere(loop_worker, drain) for loop_worker in loop_workers)
    )


async def _close_elsewhere(loop_worker: LoopWorker, drain: bool) -> None:
    closed: Future[None] = Future()

    def begin() -> None:
        task = loop_worker.loop.create_task(loop_worker.close(drain))
        task.add_done_callback(lambda _: None if closed.cancelled() else closed.set_result(None))

    loop_worker.post(begin)
    waiting = asyncio.wrap_future(closed)
    while loop_worker.loop.is_running() and not waiting.done():  # the other event loop may be stopped at any time
        await asyncio.wait([waiting], timeout=LOOK)
    waiting.cancel()


def _dead(loop_worker: LoopWorker) -> bool:
    """Whether the worker's event loop is closed, or belongs to the process from which this one was forked."""
    return loop_worker.loop.is_closed() or loop_worker.pid != os.getpid()


def _level(priority: Any) -> int:
    if priority is NORMAL:
        return int(NORMAL)
    try:
        return priority_level(priority)
    except ValueError as error:
        raise ConfigError(f"priority {error}") from None


def _rebuild(kind: type[BatchQueue[Any, Any]], function: Any, settings: Any) -> BatchQueue[Any, Any]:
    return kind(function, **settings)
