"""Decides when a batch may be sent and how large it may be. This module uses neither a clock nor asyncio.

A slot is free if fewer than ``max_concurrent_batches`` batches run. Items that arrive while all slots are busy form the next batch.
Therefore, batches grow with load, and no item waits for a timer. With several slots, a minimum time passes between the starts of two
batches. Without this time, most slots would run batches of one item.

With ``adaptive_batch_size``, the maximum size grows as long as larger batches process more items per second. The rule follows Clipper
(Crankshaw et al., "Clipper", NSDI 2017), which adds a fixed step and reduces the size by 10 % after a failure. Here, the step is not fixed:
it is a quarter of the size, at least 1.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

from qreward.batching.backlog import Backlog, KeyQueue
from qreward.batching.settings import BatchSettings

START = 8
"""Number of items (or units of ``batch_size_fn``) in a batch at the beginning."""
BACKOFF = 0.9
"""Factor by which the maximum size is multiplied after a batch that was too large."""
GAIN = 1.02
"""Minimum factor by which a step must increase the items per second. Otherwise, the step is taken back.

If a batch of n items takes a + b*n seconds, the maximum rate is 1/b. Growth then stops at 90 % of this rate.
"""
GROUP = 3
"""Number of full batches whose rate is measured together."""
REST = 50
"""Number of groups of batches to wait after a step that failed or brought no gain. Then the step is tried again."""


class AdaptiveBatchSize:
    """Adapts the maximum batch size.

    Attributes:
        limit: the current maximum size, at least 1, in items or in the unit of ``batch_size_fn``.
    """

    __slots__ = ("_batches", "_best", "_good", "_rest", "_seconds", "_size", "limit")

    def __init__(self) -> None:
        self.limit = START
        self._good = START  # the largest limit that increased the rate
        self._best = 0.0  # items per second at that limit
        self._rest = 0
        self._begin()

    def done(self, limit: float, size: float, seconds: float) -> None:
        """Record a full batch. The batch is ignored if the limit has changed since the batch began.

        Args:
            limit: the limit under which the batch began.
            size: size of the batch.
            seconds: run time of the batch.
        """
        if limit != self.limit or seconds <= 0.0:
            return
        self._batches += 1
        self._size += size
        self._seconds += seconds
        if self._batches == GROUP:
            rate = self._size / self._seconds
            self._begin()
            self._judge(rate)

    def failed(self, size: float) -> None:
        """Lower the limit, because a batch of the size ``size`` was too large."""
        self.limit = self._good = max(1, int(min(size, self.limit) * BACKOFF))
        self._best, self._rest = 0.0, REST
        self._begin()

    def _judge(self, rate: float) -> None:
        if self._rest:
            self._rest -= 1
            self._best = rate  # the next step must beat the current rate
        elif rate >= self._best * GAIN or self.limit == self._good:
            self._best, self._good = rate, self.limit
            self.limit += max(1, self.limit // 4)
        else:
            self.limit, self._rest = self._good, REST

    def _begin(self) -> None:
        self._batches, self._size, self._seconds = 0, 0.0, 0.0


def says_too_large(error: BaseException) -> bool:
    """Return True if a batch probably failed because of its size.

    Such errors are a lack of memory (also on a GPU), a timeout, and HTTP 413.
    """
    if isinstance(error, MemoryError | TimeoutError) or getattr(error, "status_code", None) == 413:
        return True
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower()


WEIGHT = 0.2
"""Weight (0 to 1) of the latest batch in the moving average of batch durations."""

Measure = Callable[[list[Any]], float]
"""A function that returns the total size of a list of items. It calls ``batch_size_fn``."""


class BatchPolicy:
    """Holds the backlog of one queue, and decides which items of the backlog form the next batch.

    Attributes:
        backlog: the waiting items.
        adaptive: the adaptive batch size; used only with ``adaptive_batch_size``.
        seconds: moving average of batch durations in seconds; None before the first batch has ended.
    """

    __slots__ = ("_first_sent", "_last_sent", "adaptive", "backlog", "seconds")

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.adaptive = AdaptiveBatchSize()
        self.seconds: float | None = None
        self._first_sent: float | None = None
        self._last_sent = -inf

    def limit(self, settings: BatchSettings) -> int:
        """Return the current maximum batch size, in items or in the unit of ``batch_size_fn``."""
        return min(settings.max_batch_size, self.adaptive.limit) if settings.adaptive_batch_size else settings.max_batch_size

    def next(
        self, now: float, settings: BatchSettings, in_flight: int, slots: int, measure: Measure | None, flush: bool
    ) -> tuple[list[Any], float]:
        """Return the items of the next batch, and the time at which this method must be called again.

        If no batch may be sent now, the items are an empty list. This method may only be called while a slot is free.

        Args:
            now: current time in seconds.
            settings: settings of the queue.
            in_flight: number of running batches.
            slots: maximum number of running batches.
            measure: function that measures a list of items; None if each item counts as one.
            flush: True if a batch may be sent at once, even if it is not full.
        """
        limit, linger = self.limit(settings), settings.batch_wait_timeout_s
        if not linger and not in_flight:  # fast path for the usual case
            queue, at = self.backlog.first(), inf
        else:
            queue, at = self._ready(now, limit, linger, in_flight, slots, flush, measure is None)
        if queue is None:
            return [], at
        if measure is None:
            return self.backlog.take(now, limit, queue=queue), at
        return fit(self.backlog, queue, now, limit, measure), at

    def sent(self, now: float) -> None:
        self._last_sent = now
        if self._first_sent is None:
            self._first_sent = now

    def done(self, seconds: float) -> None:
        self.seconds = seconds if self.seconds is None else self.seconds + WEIGHT * (seconds - self.seconds)

    def _pause(self, slots: int) -> float:
        if self.seconds is not None:
            return self.seconds / slots
        # Before the first batch has ended, each pause is as long as the time from the first to the latest start of a batch. Without a
        # pause, the first slots would run batches of one item.
        return 0.0 if self._first_sent is None or slots == 1 else self._last_sent - self._first_sent

    def _ready(
        self, now: float, limit: int, linger: float, in_flight: int, slots: int, flush: bool, counted: bool
    ) -> tuple[KeyQueue | None, float]:
        """Return the queue from which the next batch is taken, and the present time.

        If no batch may be sent now, return None and the earliest time at which a batch may be sent.
        """
        ready, soonest = [], inf
        paced = self._last_sent + self._pause(slots) if in_flight else -inf
        for queue in self.backlog.queues():
            at = queue.oldest() + linger if linger else paced
            if at <= now or flush or (counted and queue.count >= limit) or queue.cost >= limit:
                ready.append(queue)
            elif at < soonest:
                soonest = at
        if len(ready) > 1:
            return min(ready, key=KeyQueue.rank), now
        return (ready[0], now) if ready else (None, soonest)


def fit(backlog: Backlog, queue: KeyQueue, now: float, limit: float, measure: Measure) -> list[Any]:
    """Take items from the head of the queue, as many as fit into ``limit`` together.

    If the size of the list is the sum of the sizes of its items, this sum decides how many items fit. Otherwise, ``_search``
    measures lists of different lengths. For example, the size is not the sum if all items are padded to the length of the longest item.
    """
    chosen = backlog.take(now, max_cost=limit, queue=queue)
    fits = len(chosen)
    chosen += backlog.take(now, 1, queue=queue)  # according to the sum of sizes, this item no longer fits
    with suppress(Exception):  # if the user's function raises, the sum of the single sizes decides
        if len(chosen) > 1 and measure(chosen) != sum(item.cost for item in chosen):
            fits = _search(chosen, limit, measure, lambda count: backlog.take(now, count, queue=queue))
    backlog.put_back(chosen[fits:])
    return chosen[:fits]


def _search(chosen: list[Any], limit: float, measure: Measure, take: Callable[[int], list[Any]]) -> int:
    """Return how many items fit into ``limit``. Double ``chosen`` until it is too large, then find the number by bisection."""
    fits = 1
    while measure(chosen) <= limit:
        fits = len(chosen)
        more = take(fits)
        if not more:
            return fits
        chosen += more
    fails = len(chosen)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if measure(chosen[:middle]) <= limit else (fits, middle)
    return fits
