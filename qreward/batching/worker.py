"""``LoopWorker``: the items and batches of one queue in one event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, partial
from math import inf
from statistics import median_low
from typing import Any

from qreward.batching.collector import OVER, TAKEN, WAITING, Collector, Item, KeyQueue
from qreward.batching.in_flight import InFlightBatch
from qreward.batching.settings import BatchRecord, BatchSettings
from qreward.errors import ClientClosed, QueueFull, RequestTimeout

LATEST = 5  # number of latest batches whose median is the expected duration of a batch, so that one slow batch holds back no others

_log = logging.getLogger("qreward")


class LoopWorker:
    """Runs a queue in one event loop. Only ``post`` may be called from outside this loop."""

    def __init__(self, queue: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = queue
        self.loop = loop
        self.clock = loop.time
        self.collector = Collector()
        self.batches: set[InFlightBatch] = set()
        self.finalizer: weakref.finalize[Any, Any] | None = None  # removes this worker when the instance that it serves is freed
        self._context = queue.context.copy()  # a copy, because two event loops cannot run in the same context at once
        self._settings = queue.settings  # the settings of the next batch
        self._seconds: deque[float] = deque(maxlen=LATEST)  # durations of the latest batches
        self._first_sent: float | None = None  # when the first and the latest batch were sent
        self._last_sent = -inf
        self._woken = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._idle = asyncio.Event()  # set while the queue is closing and has nothing to do
        queue.update()  # Ray Serve may have been imported since then
        warn_of_ongoing_requests(queue.name, queue.settings)

    def admit(self, count: int) -> None:
        """Raise ``ClientClosed`` or ``QueueFull`` if ``count`` items cannot be added, even after starting what may start."""
        queue, most = self.queue, self.queue.settings.max_queue_size
        if queue.closed:
            raise ClientClosed(f"the queue of {queue.name} is closed; create a new one to submit further items")
        if most is None or self.collector.waiting + count <= most:
            return
        self.pump()
        waiting = self.collector.waiting
        if waiting + count > most:
            queue.counters.count(rejected=count)
            message = f"{waiting} items are already waiting for {queue.name}"
            message += "" if count == 1 else f"; {count} more do not fit"
            raise QueueFull(f"{message}; submit fewer at once, or set a larger max_queue_size")

    def add(self, value: Any, signature_key: Hashable, level: int, timeout: float | None) -> Any:
        """Add an item, for which :meth:`admit` was called, and return it. A caller that stops waiting for it must call ``abandon``."""
        queue, settings, collector = self.queue, self.queue.settings, self.collector
        if queue.plain:
            item: Any = Item(value, self.clock(), signature_key, 1, level)
        else:
            key_fn = settings.batch_key_fn
            key = signature_key if key_fn is None else (signature_key, key_fn(queue.first_of(value)))
            cost = 1 if settings.batch_size_fn is None else queue.size_of([value])
            if cost > settings.max_batch_size:
                raise too_large()
            item = queue.item_type(value, self.clock(), key, cost, level)
            if queue.serve is not None:
                item.request_context = queue.serve._get_serve_request_context()
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
        if item.state is OVER:
            return
        if self.loop.is_closed():
            item.state = OVER
            return
        item.future.cancel()
        self.queue.counters.count(cancelled=1)
        if item.state is WAITING:
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
        while self.collector.waiting and len(self.batches) < self.queue.settings.max_concurrent_batches:
            items, at = self._next(now)
            if not items:
                break
            batch = self.queue.batch_type(self.queue, items, self._settings.max_batch_size, now)
            self.batches.add(batch)
            self._last_sent = now
            if self._first_sent is None:
                self._first_sent = now
            self._settings = self.queue.settings
            self.queue.counters.count(batches=1, items=len(items), waits=[now - item.arrived for item in items])
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
                if waited := item.state is WAITING:
                    self.collector.remove(item)
                where = "it was still waiting for a batch" if waited else "its batch was under way"
                limit = f"the timeout of {item.deadline - item.arrived:g} s (queueing included)"
                self.queue.counters.count(expired=1)
                item.fail(RequestTimeout(f"{self.queue.name} gave no result within {limit}; {where}"))
                if not waited:
                    item.batch.abandon(item)

    def _next(self, now: float) -> tuple[list[Any], float]:
        """Return the items of the next batch whose callers have not left, and the time at which to try again if there are none."""
        settings, collector = self.queue.settings, self.collector
        size_of = self.queue.size_of
        measure = None if settings.batch_size_fn is None else lambda items: float(size_of([item.value for item in items]))
        while True:
            if not self._settings.batch_wait_timeout_s:  # a batch that waits for more items keeps the settings with which it began
                self._settings = settings
            due, at = self._due(now)
            if due is None:
                return [], at
            size = self._settings.max_batch_size
            items = collector.take(size, queue=due) if measure is None else collector.take(queue=due, limit=size, measure=measure)
            if measure is not None and len(items) == 1 and items[0].cost > size:
                items[0].fail(too_large())  # the limit was lowered after the item was submitted
            gone = [item for item in items if item.future.done()]
            if not gone:
                return items, now
            for item in gone:
                if item.state is TAKEN:  # the caller was cancelled, but has not called ``abandon`` yet
                    item.state = OVER
                    self.queue.counters.count(cancelled=1)
            collector.put_back(items)  # those that are left, because the batch may not be full any more

    def _due(self, now: float) -> tuple[KeyQueue | None, float]:
        """Return the key whose batch may be sent now, or None and the time at which one is due."""
        linger, running, slots = self._settings.batch_wait_timeout_s, len(self.batches), self.queue.settings.max_concurrent_batches
        if not linger and not running:  # fast path for the usual case
            return self.collector.first(), inf
        ready, at, paced = [], inf, -inf
        if running and self._seconds:
            paced = self._last_sent + median_low(self._seconds) / slots
        elif running and self._first_sent is not None and slots > 1:
            # Before the first batch has ended, each pause is as long as the time from the first to the latest start of a batch.
            # Without a pause, the first slots would run batches of one item.
            paced = 2 * self._last_sent - self._first_sent
        for each in self.collector.queues():
            soonest = each.items[0].arrived + linger if linger else paced
            if soonest <= now or self._closing or each.cost >= self._settings.max_batch_size:
                ready.append(each)
            else:
                at = min(at, soonest)
        return min(ready, key=KeyQueue.order, default=None), at

    def _ended(self, batch: InFlightBatch, task: asyncio.Task[None]) -> None:
        """Free the slot of a batch that has ended, and start the next batch."""
        if batch not in self.batches:
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and batch.error is None:
            batch.fail(error)
        rest = batch.unstoppable
        if rest is not None and not rest.done():
            rest.add_done_callback(lambda _: self._ended(batch, task), context=self._context)
            self.pump()
            return
        self.batches.discard(batch)
        seconds = self.clock() - batch.sent_at
        self.queue.counters.count(failed=batch.failed, runs=[seconds])
        if batch.alive or batch.error is None:
            self._seconds.append(seconds)
        on_batch, name, items = self.queue.settings.on_batch, self.queue.name, batch.items
        if on_batch is not None or self.queue.serve is not None:
            size, waits = sum(item.cost for item in items), tuple(batch.sent_at - item.arrived for item in items)
            record = BatchRecord(name, len(items), size, batch.limit, waits, seconds, self.collector.waiting, batch.error)
            record_in_ray_serve(record)
            try:
                if on_batch is not None:
                    on_batch(record)
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
            message = f"the queue of {self.queue.name} was closed before the item was done"
            for item in self.collector.items():
                self.collector.remove(item)
                item.fail(ClientClosed(message))
            for batch in list(self.batches):
                for item in batch.items:
                    if item.state is TAKEN:
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


def too_large() -> RuntimeError:
    return RuntimeError(
        "Size of item is greater than max_batch_size. Please increase the max_batch_size or check the implementation of the batch_size_fn."
    )


# a replica of Ray Serve: request contexts, a warning and metrics


def serve_context() -> Any:
    """Return the module ``ray.serve.context``, or None if this process does not use Ray Serve, or a version without request contexts."""
    module = sys.modules.get("ray.serve.context")
    return module if hasattr(module, "_set_batch_request_context") else None


def replica() -> Any:
    """Return the context of the replica in which this process runs, or None."""
    module = serve_context()
    return None if module is None else module._get_internal_replica_context()


def warn_of_ongoing_requests(name: str, its: BatchSettings) -> None:
    """Log a warning if the replica does not receive enough requests at once to fill the batches."""
    context, needed = replica(), its.max_batch_size * its.max_concurrent_batches
    most = None if context is None or its.batch_size_fn is not None else context._deployment_config.max_ongoing_requests
    if most is not None and most < needed:
        _log.warning(
            "%s: `max_batch_size` (%d) * `max_concurrent_batches` (%d) is larger than `max_ongoing_requests` (%d), so the replica never "
            "receives enough requests at once to fill its batches; set `max_ongoing_requests` to at least %d",
            *(name, its.max_batch_size, its.max_concurrent_batches, most, needed),
        )


def record_in_ray_serve(batch: BatchRecord) -> None:
    """Record a batch that has ended in the metrics of Ray Serve, if this process is a replica."""
    if "ray.serve.metrics" not in sys.modules or replica() is None:
        return
    tags, (*histograms, length, batches) = {"function_name": batch.name.rpartition(".")[2]}, _metrics()
    values = batch.size, 100 * batch.size / batch.limit, 1000 * batch.waits[0], 1000 * batch.seconds
    for histogram, value in zip(histograms, values, strict=True):
        histogram.observe(value, tags=tags)
    length.set(batch.waiting, tags=tags)
    batches.inc(tags=tags)


@cache
def _metrics() -> list[Any]:
    metrics, constants = sys.modules["ray.serve.metrics"], sys.modules.get("ray.serve._private.constants")

    def histogram(name: str, description: str, buckets: str) -> Any:
        boundaries = getattr(constants, buckets, [2.0**power for power in range(20)])
        return metrics.Histogram(name, description=description, boundaries=boundaries, tag_keys=("function_name",))

    return [
        histogram("serve_actual_batch_size", "Size of each batch.", "BATCH_SIZE_BUCKETS"),
        histogram("serve_batch_utilization_percent", "Size in % of max_batch_size.", "BATCH_UTILIZATION_BUCKETS_PERCENT"),
        histogram("serve_batch_wait_time_ms", "Time that the first request waited.", "BATCH_WAIT_TIME_BUCKETS_MS"),
        histogram("serve_batch_execution_time_ms", "Run time of the function.", "BATCH_EXECUTION_TIME_BUCKETS_MS"),
        metrics.Gauge("serve_batch_queue_length", description="Requests that wait for a batch.", tag_keys=("function_name",)),
        metrics.Counter("serve_batches_processed", description="Batches that have ended.", tag_keys=("function_name",)),
    ]
