"""The part of a batch queue that belongs to one event loop: it accepts items, starts batches and runs the timer.

There is no task and no timer per item. Submissions share one callback, and one timer is set for the earliest due time. ``policy``
decides when a batch is sent and what it holds; this module only carries that out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from contextvars import copy_context
from math import inf
from typing import Any

from qreward.batching.backlog import OVER, TAKEN, WAITING
from qreward.batching.in_flight import BatchFunction, FunctionKind, InFlightBatch, PendingItem, contexts_of, too_large
from qreward.batching.policy import BatchPolicy, says_too_large
from qreward.batching.settings import BatchRecord
from qreward.batching.streaming import BatchStreamReader, StreamRun
from qreward.errors import ClientClosed, QueueFull, RequestTimeout

_log = logging.getLogger("qreward")


class LoopWorker:
    """The state of a queue in one event loop. It is used from that loop only, except for ``post``."""

    def __init__(self, work: BatchFunction, loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.pid = os.getpid()
        self.clock = work.settings.clock or loop.time
        self.forming = BatchPolicy()
        self.backlog = self.forming.backlog
        self.runs: set[InFlightBatch] = set()
        self._context = work.context.copy()  # a copy, because two event loops cannot run in the same context at once
        self._terms = work.settings
        self._woken = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._idle: list[asyncio.Future[None]] = []

    def enter(self, value: Any, shape: Hashable, level: int, timeout: float | None) -> Any:
        """Add an item and return it. A caller that stops waiting for the item must call ``left``.

        Raises:
            ClientClosed: the queue is closed.
            QueueFull: ``max_queue_size`` items are waiting already.
            RuntimeError: the item is larger than ``max_batch_size``.
            Exception: raised by ``batch_size_fn`` or ``batch_key_fn``. Other items are not affected.
        """
        if self.work.plain:
            call: Any = PendingItem(value, self.clock(), shape, 1, level)
        else:
            self._admit(1)
            call = self._made(value, shape, level)
        return self._put(call, timeout)

    def enter_many(self, values: Sequence[Any], level: int, timeout: float | None) -> list[Any]:
        """Add all items or none.

        Returns:
            For each value, the pending item, or the exception that ``batch_size_fn`` or ``batch_key_fn`` raised for it.

        Raises:
            ClientClosed: the queue is closed.
            QueueFull: ``max_queue_size`` does not allow all of them.
        """
        self._admit(len(values))
        entered: list[Any] = []
        for value in values:
            try:
                call = self._made(value, None, level)
            except Exception as error:
                entered.append(error)
            else:
                entered.append(self._put(call, timeout))
        return entered

    def _admit(self, count: int) -> None:
        """Raise if ``count`` more items may not be added. If the queue is full, batches that can start now are started first."""
        work, most = self.work, self.work.settings.max_queue_size
        if work.closed:
            raise ClientClosed(f"the queue of {work.name} is closed; nothing can be submitted to it any more")
        if most is None or self.backlog.waiting + count <= most:
            return
        self._pump()
        waiting = self.backlog.waiting
        if waiting + count > most:
            work.tally.count("rejected", count)
            said = f"{waiting} items are waiting for {work.name} already" + ("" if count == 1 else f"; there is no room for {count} more")
            raise QueueFull(f"{said}; submit fewer at once, or set a larger max_queue_size")

    def _made(self, value: Any, shape: Hashable, level: int) -> Any:
        """Create an item under settings that need a size, a key, a stream or a context for it."""
        work, settings = self.work, self.work.settings
        key = shape if settings.batch_key_fn is None else work.key_of(value, shape)
        cost = 1 if settings.batch_size_fn is None else work.size_of(value)
        kind = BatchStreamReader if work.kind is FunctionKind.STREAMED else PendingItem
        call = kind(value, self.clock(), key, cost, level)
        if settings.carry_contexts:
            call.context = copy_context()
        return call

    def _put(self, call: Any, timeout: float | None) -> Any:
        backlog, settings = self.backlog, self.work.settings
        call.future = self.loop.create_future()
        if timeout is not None or settings.timeout is not None:
            self._limit(call, timeout or settings.timeout)
        if not backlog.waiting:
            self._terms = settings
        backlog.put(call)
        if not self._woken and len(self.runs) < settings.max_concurrent_batches:
            self._woken = True
            self.loop.call_soon(self._pump, context=self._context)
        return call

    def _limit(self, call: Any, seconds: Any) -> None:
        call.deadline = call.arrived + seconds
        if call.deadline < self._timer_at:
            self._arm(call.deadline, call.arrived)

    def left(self, call: Any) -> None:
        """Remove an item whose caller has stopped waiting. The caller's task may also have been destroyed with its event loop."""
        if call.place is OVER:
            return
        if self.loop.is_closed():
            call.place = OVER
            return
        call.future.cancel()
        self.work.tally.count("cancelled")
        if call.place is WAITING:
            self.backlog.remove(call)
            if not self.backlog.waiting:
                self._pump()  # the timer may not be needed any more, and ``close`` may return
        else:
            call.run.left(call)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function in this worker's event loop, from any thread. Does nothing if the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def wake(self) -> None:
        """Apply changed settings: start the batches that may start now."""
        self._pump()

    def _pump(self) -> None:
        """Start the batches that may start now, and set the timer for the next due time."""
        self._woken = False
        if not self.backlog.waiting and self._timer is None and not self._idle:
            return
        now, at = self.clock(), inf
        if self._timer is not None:  # a timer is set while any item has a deadline
            self._expire(self.backlog.due(now))
        while self.backlog.waiting and len(self.runs) < self.work.settings.max_concurrent_batches:
            calls, at = self._next(now)
            if not calls:
                break
            self._start(calls, now)
            at = inf
        if self._timer is not None or at != inf:
            self._arm(min(at, self.backlog.next_deadline()), now)
        if self._idle:
            self._say_if_idle()

    def _say_if_idle(self) -> None:
        if not self._busy():
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()

    def _next(self, now: float) -> tuple[list[Any], float]:
        """Return a batch whose callers are all still waiting, or no items and the time at which to check again."""
        settings = self.work.settings
        measure = None if settings.batch_size_fn is None else self.work.measure
        while True:
            if not self._terms.batch_wait_timeout_s:  # else a batch that waits to fill keeps the settings it began with
                self._terms = settings
            slots = settings.max_concurrent_batches
            calls, at = self.forming.next(now, self._terms, len(self.runs), slots, measure, self._closing)
            if measure is not None and len(calls) == 1 and calls[0].cost > self._terms.max_batch_size:
                calls[0].fail(too_large())  # the limit was lowered after the item was submitted
            here = [call for call in calls if not call.future.done()]
            if len(here) == len(calls):
                return calls, at
            for call in calls:
                if call.future.done():
                    self._gone(call)
            self.backlog.put_back(here)  # the batch may not be full any more

    def _gone(self, call: Any) -> None:
        """Count an item whose caller was cancelled but has not called ``left`` yet."""
        if call.place is TAKEN:
            call.place = OVER
            self.work.tally.count("cancelled")

    def _start(self, calls: list[Any], now: float) -> None:
        limit = self.forming.limit(self._terms)
        kind = StreamRun if self.work.kind is FunctionKind.STREAMED else InFlightBatch
        run = kind(self.work, calls, limit, self.backlog.waiting > 0, now)
        self.runs.add(run)
        self.forming.sent(now)
        self._terms = self.work.settings
        self.work.tally.sent([now - call.arrived for call in calls])
        run.task = self.loop.create_task(run.carry_out(), context=self._context.copy())
        run.task.add_done_callback(lambda task: self._ended(run, task), context=self._context)

    def _ended(self, run: InFlightBatch, task: asyncio.Task[None]) -> None:
        """Free the slot of a batch that has ended, and start the next batch.

        The callers of the batch have run before this callback, so items that they submitted since are in the next batch.
        """
        if run not in self.runs:
            return
        rest = run.unstoppable
        if rest is not None and not rest.done():
            rest.add_done_callback(lambda _: self._ended(run, task), context=self._context)
            if self._idle:
                self._say_if_idle()
            return
        if not task.cancelled():
            task.exception()
        elif run.error is None:
            run.fail(asyncio.CancelledError())  # the task was cancelled before its first step
        self.runs.discard(run)
        seconds = self.clock() - run.sent_at
        self.work.tally.ended(seconds, run.failed)
        if run.alive or run.error is None:
            self.forming.done(seconds)
        if self.work.settings.adaptive_batch_size:
            self._adapt(run, seconds)
        if self.work.settings.on_batch is not None:
            self._tell(run, seconds)
        run.calls = []  # break the reference cycle, so that reference counting frees the items
        del run.task
        self._pump()

    def _adapt(self, run: InFlightBatch, seconds: float) -> None:
        size = sum(call.cost for call in run.calls)
        if run.error is not None and says_too_large(run.error):
            self.forming.cap.failed(size)
        elif run.error is None and (run.full or size >= run.limit):
            self.forming.cap.done(run.limit, size, seconds)

    def _tell(self, run: InFlightBatch, seconds: float) -> None:
        calls = run.calls
        record = BatchRecord(
            name=self.work.name,
            items=len(calls),
            size=sum(call.cost for call in calls),
            limit=run.limit,
            waits=tuple(run.sent_at - call.arrived for call in calls),
            seconds=seconds,
            waiting=self.backlog.waiting,
            error=run.error,
            contexts=contexts_of(calls),
        )
        try:
            assert self.work.settings.on_batch is not None
            self.work.settings.on_batch(record)
        except Exception:
            _log.exception("on_batch of %s raised", self.work.name)

    def _expire(self, late: list[Any]) -> None:
        for call in late:
            if call.future.done():
                continue
            waited = call.place is OVER
            where = "it was still waiting for a batch" if waited else "its batch was under way"
            seconds = call.deadline - call.arrived
            self.work.tally.count("expired")
            call.fail(RequestTimeout(f"{self.work.name} gave no result within the timeout of {seconds:g} s (queueing included); {where}"))
            if not waited:
                call.run.left(call)

    def _arm(self, at: float, now: float) -> None:
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at == inf else self.loop.call_later(max(0.0, at - now), self._ring, context=self._context)

    def _ring(self) -> None:
        self._timer_at = -inf  # it has fired and must be set again
        self._pump()

    async def close(self, drain: bool) -> None:
        """Wait until no item is waiting and no batch is running.

        Without ``drain``, waiting items fail and running batches are cancelled. Threads and actors whose callers have all left are not
        waited for.
        """
        self._closing = True
        if not drain:
            self._abandon()
        self._pump()
        while self._busy():
            waiter = self.loop.create_future()
            self._idle.append(waiter)
            await waiter

    def _busy(self) -> bool:
        return self.backlog.waiting > 0 or not all(run.task.done() for run in self.runs)

    def _abandon(self) -> None:
        error = f"the queue of {self.work.name} was closed before the item was done"
        for call in self.backlog.items():
            self.backlog.remove(call)
            call.fail(ClientClosed(error))
        for run in list(self.runs):
            for call in run.calls:
                if call.place is TAKEN:
                    call.fail(ClientClosed(error))
            run.unstoppable = None
            if run.task.done():
                self._ended(run, run.task)
            else:
                run.task.cancel()
