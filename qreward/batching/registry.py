"""A batched function in this process: one queue for a function, one for each instance or class of a method, and what controls them all.

Instances are held weakly: their queues go when they go. Pickled, it is the function and its settings; each process has queues of its own.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable
from typing import Any, Unpack

from qreward.batching.binding import Binder, takes_receiver
from qreward.batching.desk import Desk
from qreward.batching.queue import BatchQueue, change, close_desks, stats_of
from qreward.batching.settings import Options, Settings
from qreward.batching.tally import QueueStats, StartTimes
from qreward.batching.work import Work

CONTROLS = (
    "set_max_batch_size",
    "set_batch_wait_timeout_s",
    "set_max_concurrent_batches",
    "change",
    "stats",
    "close",
    "_get_max_batch_size",
    "_get_batch_wait_timeout_s",
    "_get_curr_iteration_start_times",
    "_is_batching_task_alive",
    "_get_handling_task_stack",
)
"""What a batched function has beside being called. Names with an underscore are Ray Serve's."""


class Registry:
    """Finds the queue and binds the arguments of each call of a batched function.

    Args:
        function: the batch function.
        settings: see :class:`~qreward.batching.Settings`.
    """

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        self.__setstate__((function, settings))

    def __getstate__(self) -> tuple[Callable[..., Any], Settings]:
        return self._function, self.work.settings

    def __setstate__(self, state: tuple[Callable[..., Any], Settings]) -> None:
        self._function, settings = state
        self._binder: Binder | None = None  # made by the first call: until then a pickled function may be incomplete
        self._queues: dict[int, tuple[weakref.ref[Any], BatchQueue[Any, Any]]] = {}
        self._lock = threading.Lock()
        self.work = Work(self._function, settings, call=self._call, first_of=self._first_of)
        self._shared = BatchQueue.of(self.work)

    # calls

    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """What gives the result of a call."""
        queue, values, shape = self._place(args, kwargs)
        return queue.answer(values, shape)

    def answers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """What gives the stream of a call."""
        queue, values, shape = self._place(args, kwargs)
        return queue.answers(values, shape)

    # control

    def set_max_batch_size(self, size: int) -> None:
        """See ``BatchQueue.set_max_batch_size``."""
        self.change(max_batch_size=size)

    def set_batch_wait_timeout_s(self, seconds: float) -> None:
        """See ``BatchQueue.set_batch_wait_timeout_s``."""
        self.change(batch_wait_timeout_s=seconds)

    def set_max_concurrent_batches(self, batches: int) -> None:
        """See ``BatchQueue.set_max_concurrent_batches``."""
        self.change(max_concurrent_batches=batches)

    def change(self, **settings: Unpack[Options]) -> None:
        """See ``BatchQueue.change``."""
        change(self.work, settings, self.desks())

    def stats(self) -> QueueStats:
        """See ``BatchQueue.stats``; over the queues of all instances."""
        return stats_of(self.work, self.desks())

    async def close(self, drain: bool = True) -> None:
        """See ``BatchQueue.close``; the queues of all instances."""
        self.work.close()
        await close_desks(self.desks(), drain)

    def desks(self) -> list[Desk]:
        """Those of all queues."""
        queues = [self._shared, *(queue for _, queue in list(self._queues.values()))]
        return [desk for queue in queues for desk in queue.desks()]

    def _get_max_batch_size(self) -> int:
        return self.work.settings.max_batch_size

    def _get_batch_wait_timeout_s(self) -> float:
        return self.work.settings.batch_wait_timeout_s

    def _get_curr_iteration_start_times(self) -> StartTimes:
        return StartTimes([run.started for desk in self.desks() for run in list(desk.runs)])

    async def _is_batching_task_alive(self) -> bool:
        return not self.work.closed

    async def _get_handling_task_stack(self) -> str:
        return "\n".join(stack_of(run.task.get_coro()) for desk in self.desks() for run in list(desk.runs))

    # how it is done

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BatchQueue[Any, Any], Any, Hashable]:
        binder = self._binder or self._bind(args)
        values, shape = binder.values(args, kwargs)
        if not binder.bound:
            return self._shared, values, shape
        found = self._queues.get(id(values[0]))
        queue = self._make(values[0]) if found is None else found[1]
        return queue, values, shape if queue is not self._shared else (id(values[0]), shape)

    def _make(self, instance: Any) -> BatchQueue[Any, Any]:
        """A queue for an instance. One that cannot be held weakly shares a queue with others, but no batch."""
        queues, key = self._queues, id(instance)
        try:
            held = weakref.ref(instance, lambda _: queues.pop(key, None))
        except TypeError:
            return self._shared
        with self._lock:
            return queues.setdefault(key, (held, BatchQueue.of(self.work)))[1]

    def _bind(self, args: tuple[Any, ...]) -> Binder:
        with self._lock:
            if self._binder is None:
                self._binder = Binder(self._function, takes_receiver(self._function, args))
            return self._binder

    def _call(self, rows: list[Any]) -> Any:
        assert self._binder is not None
        return self._binder.spread(rows)

    def _first_of(self, row: Any) -> Any:
        assert self._binder is not None
        return self._binder.first(row)


def stack_of(coroutine: Any) -> str:
    """Where a coroutine stands, and those that it awaits."""
    frames = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    return "".join(traceback.StackSummary.extract(iter(frames)).format())
