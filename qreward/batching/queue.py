"""BatchQueue: single items in, one call of a function for many of them, each caller's own result out.

Holds a desk for each event loop; they share the function and the settings, nothing else.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar, Unpack

from qreward.batching.in_flight import BatchFunction, Kind, PendingItem
from qreward.batching.policy import Forming
from qreward.batching.settings import Options, Settings, budget, checked
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
"""Seconds after which ``close`` looks whether the loop of another thread still runs."""


class BatchQueue(Generic[T, R]):
    """Merges items that are submitted one by one into calls of one function.

    A batch goes as soon as a slot is free, and takes what has come until then; while all slots are busy the next batch fills. So a
    lone item is sent at once, and batches grow with load, without a wait to be tuned.

    Args:
        function: takes a list of items and returns a list with a result for each: ``async def``; ``def``, which is run in a thread; or
            an async generator of such lists, for ``stream``. An exception *in* the list is raised for that item alone.
        settings: see :class:`~qreward.batching.Settings`.

    Attributes:
        settings: as they are now.

    A queue needs no running loop to be made, and may be used from several event loops and threads; ``max_concurrent_batches`` and
    ``max_queue_size`` hold for each of them.

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
        """A queue of work that it shares with others."""
        queue: BatchQueue[Any, Any] = cls.__new__(cls)
        queue._begin(work)
        return queue

    def _begin(self, work: BatchFunction) -> None:
        self._work = work
        self._desks: dict[asyncio.AbstractEventLoop, LoopWorker] = {}
        self._latest: LoopWorker | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._function, vars(self.settings))

    def __repr__(self) -> str:
        stats = self.stats()
        return f"BatchQueue({self._work.name}: {stats.waiting} waiting, {stats.in_flight} in flight)"

    @property
    def settings(self) -> Settings:
        return self._work.settings

    # use

    async def submit(self, item: T, *, priority: int | str = NORMAL, timeout: float | None = None) -> R:
        """The result for one item.

        Args:
            item: anything.
            priority: 0 (first) to 9, or ``"high"``, ``"normal"``, ``"low"``; a level outweighs 15 seconds of waiting, so that nothing
                starves.
            timeout: seconds for this item, queueing included; None is the queue's ``timeout``.

        Raises:
            RequestTimeout: the time was over (a ``TimeoutError``). What still waited is never sent.
            QueueFull: ``max_queue_size`` items wait already.
            ClientClosed: the queue is closed.
            InvalidResponse: the function returned another number of results.
            RuntimeError: the item is larger than ``max_batch_size``.
            Exception: what the function raised, as an exception of this caller's own.
        """
        return await self.answer(item, None, _level(priority), None if timeout is None else budget(timeout))  # type: ignore[no-any-return]

    async def submit_many(
        self, items: Iterable[T], *, priority: int | str = NORMAL, timeout: float | None = None
    ) -> list[R | BaseException]:
        """An outcome for each of several items, in their order: its result, or its exception.

        All are taken in at once, before this waits for anything, or none is. They may go in several batches, also with other items.

        Args:
            items: in the order in which they are to go.
            priority: as for ``submit``.
            timeout: as for ``submit``; for each item.

        Raises:
            QueueFull: there is no room for all of them.
            ClientClosed: the queue is closed.

        Example:
            >>> async def half(numbers):
            ...     return [ValueError("odd") if number % 2 else number // 2 for number in numbers]
            >>> asyncio.run(BatchQueue(half).submit_many([4, 5, 6]))
            [2, ValueError('odd'), 3]
        """
        if self._work.kind is Kind.STREAMED:
            raise TypeError(f"{self._work.name} is an async generator; read stream(item)")
        desk = self._here()
        calls = desk.enter_many(list(items), _level(priority), None if timeout is None else budget(timeout))
        futures = [call.future for call in calls if isinstance(call, PendingItem)]
        try:
            if futures:
                await asyncio.wait(futures)
        except BaseException:
            for call in calls:
                if isinstance(call, PendingItem):
                    desk.left(call)
            raise
        return [(call.future.exception() or call.future.result()) if isinstance(call, PendingItem) else call for call in calls]

    def stream(self, item: T, *, priority: int | str = NORMAL, timeout: float | None = None) -> AsyncGenerator[R, None]:
        """The stream for one item, if the function is an async generator. It is submitted at once; for the rest see ``submit``.

        Read it, or leave it with ``aclose()``: a stream that is not read while its batch waits for that is ended after
        ``stream_timeout``, with ``RequestTimeout`` behind the pieces that had come.
        """
        return self.answers(item, None, _level(priority), None if timeout is None else budget(timeout))

    async def answer(self, value: Any, shape: Hashable, level: int = NORMAL, timeout: float | None = None) -> Any:
        """``submit`` for arguments that have been checked, with a key of their own."""
        if self._work.kind is Kind.STREAMED:
            raise TypeError(f"{self._work.name} is an async generator; read stream(item)")
        desk = self._here()
        call = desk.enter(value, shape, level, timeout)
        try:
            return await call.future
        except BaseException:
            desk.left(call)
            raise

    def answers(self, value: Any, shape: Hashable, level: int = NORMAL, timeout: float | None = None) -> AsyncGenerator[Any, None]:
        """``stream`` for arguments that have been checked, with a key of their own."""
        if self._work.kind is not Kind.STREAMED:
            raise TypeError(f"{self._work.name} is no async generator; await submit(item)")
        desk = self._here()
        return CallerStream(desk, desk.enter(value, shape, level, timeout))

    # the end

    async def close(self, drain: bool = True) -> None:
        """Take nothing more, and wait until nothing is under way, in all event loops that still run. May be called again.

        Args:
            drain: send what waits, without waiting for fuller batches. False fails it with ``ClientClosed``, as it does what is
                under way.

        A function that runs in a thread cannot be stopped. It is waited for only while one of its callers waits for it.
        """
        self._work.close()
        await close_desks(self.desks(), drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(drain=kind is None)

    # what can be seen and changed

    def stats(self) -> QueueStats:
        """Where the queue stands, over all event loops."""
        return stats_of(self._work, self.desks())

    def set_max_batch_size(self, size: int) -> None:
        """Set the largest batch; like all setters it holds for batches that have not begun to form.

        Raises:
            TypeError, ConfigError: as when the queue was made; nothing is changed then.
        """
        self.change(max_batch_size=size)

    def set_batch_wait_timeout_s(self, seconds: float) -> None:
        """Set how long a batch waits for more, in seconds."""
        self.change(batch_wait_timeout_s=seconds)

    def set_max_concurrent_batches(self, batches: int) -> None:
        """Set how many batches may be under way; those that are beyond it are not stopped."""
        self.change(max_concurrent_batches=batches)

    def change(self, **settings: Unpack[Options]) -> None:
        """Set any settings but ``clock`` anew, while the queue works.

        Raises:
            TypeError, ConfigError: as when the queue was made; nothing is changed then.
        """
        change(self._work, settings, self.desks())

    def desks(self) -> list[LoopWorker]:
        """One for each event loop that used the queue and is not closed."""
        return [desk for desk in list(self._desks.values()) if not _dead(desk)]

    def _here(self) -> LoopWorker:
        loop = asyncio.get_running_loop()
        desk = self._latest
        return desk if desk is not None and desk.loop is loop else self._look_up(loop)

    def _look_up(self, loop: asyncio.AbstractEventLoop) -> LoopWorker:
        with self._lock:
            desk = self._desks.get(loop)
            if desk is None:
                for gone in [known for known, its in self._desks.items() if _dead(its)]:
                    del self._desks[gone]
                desk = self._desks[loop] = LoopWorker(self._work, loop)
            self._latest = desk
            return desk


def stats_of(work: BatchFunction, desks: list[LoopWorker]) -> QueueStats:
    """The numbers of several desks as one."""
    limit = max((desk.forming.limit(work.settings) for desk in desks), default=Forming().limit(work.settings))
    waiting, in_flight = sum(desk.backlog.waiting for desk in desks), sum(len(desk.runs) for desk in desks)
    return work.tally.snapshot(waiting, in_flight, limit)


def change(work: BatchFunction, settings: Any, desks: list[LoopWorker]) -> None:
    """Change the settings of work, and let its desks look again."""
    if "clock" in settings:
        raise ConfigError("clock cannot be changed; make a new queue")
    work.change(**settings)
    for desk in desks:
        desk.post(desk.wake)


async def close_desks(desks: list[LoopWorker], drain: bool) -> None:
    """Close them, each in its own loop; one whose loop does not run has nothing under way."""
    here = asyncio.get_running_loop()
    await asyncio.gather(*(desk.close(drain) if desk.loop is here else _close_elsewhere(desk, drain) for desk in desks))


async def _close_elsewhere(desk: LoopWorker, drain: bool) -> None:
    closed: Future[None] = Future()

    def begin() -> None:
        task = desk.loop.create_task(desk.close(drain))
        task.add_done_callback(lambda _: None if closed.cancelled() else closed.set_result(None))

    desk.post(begin)
    waiting = asyncio.wrap_future(closed)
    while desk.loop.is_running() and not waiting.done():  # it may be stopped at any time
        await asyncio.wait([waiting], timeout=LOOK)
    waiting.cancel()


def _dead(desk: LoopWorker) -> bool:
    """Its loop is closed, or belongs to the process from which this one was forked."""
    return desk.loop.is_closed() or desk.pid != os.getpid()


def _level(priority: Any) -> int:
    if priority is NORMAL:
        return int(NORMAL)
    try:
        return priority_level(priority)
    except ValueError as error:
        raise ConfigError(f"priority {error}") from None


def _rebuild(kind: type[BatchQueue[Any, Any]], function: Any, settings: Any) -> BatchQueue[Any, Any]:
    return kind(function, **settings)
