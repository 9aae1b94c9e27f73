"""Decides when a batch may be sent and how large it may be. Pure: no clock, no asyncio.

Batches form naturally: items that arrive while all slots are busy are the next batch. Batches grow with load, and no item waits for
a timer. With several slots, batches are spaced in time; otherwise all but one slot would be spent on single items.

With ``adaptive_batch_size``, the maximum size grows while that increases the items per second. The rule follows Clipper (Crankshaw
et al., "Clipper", NSDI 2017): additive increase, a backoff of 10 % on failure. Here a step is a quarter of the size, at least 1.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from qreward.batching.backlog import Backlog, KeyQueue
from qreward.batching.settings import BatchSettings

START = 8
BACKOFF = 0.9
GAIN = 1.02
"""Minimum ratio of the items per second after a step to those before it.

A step is a quarter. If a batch of n items takes a + b*n seconds, growth stops at 90 % of the maximum rate, 1/b.
"""
GROUP = 3
"""Number of full batches that are measured together."""
REST = 50
"""Groups after which a step that brought no gain, or failed, is tried again."""


class AdaptiveBatchSize:
    """The adaptive maximum batch size: ``limit``, at least 1, in the unit in which batch sizes are counted."""

    __slots__ = ("_batches", "_best", "_good", "_rest", "_seconds", "_size", "limit")

    def __init__(self) -> None:
        self.limit = START
        self._good = START  # the largest limit that brought a gain
        self._best = 0.0  # items per second at that limit
        self._rest = 0
        self._begin()

    def done(self, limit: float, size: float, seconds: float) -> None:
        """Record a batch that was full under ``limit`` and took ``seconds``. A batch under another limit is ignored."""
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
        """Lower the limit after a batch of ``size`` failed because it was too large."""
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
    """Whether an error was probably caused by the size of the batch: out of memory (also on a GPU), a timeout, or HTTP 413."""
    if isinstance(error, MemoryError | TimeoutError) or getattr(error, "status_code", None) == 413:
        return True
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower()


WEIGHT = 0.2
"""Weight of the latest batch in the moving average of batch durations."""

Measure = Callable[[list[Any]], float]
"""Returns the total size of a list of items. Used only if the size is not their number."""


class BatchPolicy:
    """The backlog of one queue, and the rules by which batches are taken from it.

    ``seconds`` is the moving average of batch durations. ``adaptive`` is used only with ``adaptive_batch_size``.
    """

    __slots__ = ("_first_sent", "_last_sent", "adaptive", "backlog", "seconds")

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.adaptive = AdaptiveBatchSize()
        self.seconds: float | None = None
        self._first_sent: float | None = None
        self._last_sent = -inf

    def limit(self, settings: BatchSettings) -> int:
        """The maximum batch size, in items or in the unit of ``batch_size_fn``."""
        return min(settings.max_batch_size, self.adaptive.limit) if settings.adaptive_batch_size else settings.max_batch_size

    def next(
        self, now: float, settings: BatchSettings, in_flight: int, slots: int, measure: Measure | None, flush: bool
    ) -> tuple[list[Any], float]:
        """Return the next batch if one may be sent, or no items and the time at which to call again. Called only while a slot is free.

        ``flush`` does not wait for a fuller batch. ``measure`` is None if each item counts as one.
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
        # before any batch has ended, the pause doubles; else the first slots would be spent on single items
        return 0.0 if self._first_sent is None or slots == 1 else self._last_sent - self._first_sent

    def _ready(
        self, now: float, limit: int, linger: float, in_flight: int, slots: int, flush: bool, counted: bool
    ) -> tuple[KeyQueue | None, float]:
        """The key that is first among those whose batch may be sent now; or None and the earliest time at which one may be."""
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
    """Take as many items as fit into ``limit`` together.

    The size of each item alone is known. One call of ``measure`` shows whether the sizes add up; if they do, their sum decides. If they
    do not, for example because everything is padded to the longest item, the largest head that fits is searched: it is doubled while it
    fits, then bisected. For this a longer head must not be smaller.
    """
    chosen = backlog.take(now, max_cost=limit, queue=queue)
    fits = by_sum = len(chosen)
    chosen += backlog.take(now, 1, queue=queue)  # the first item that should not fit
    try:
        if len(chosen) > 1 and measure(chosen) != sum(item.cost for item in chosen):
            fits = 1
            while measure(chosen) <= limit:
                fits = len(chosen)
                more = backlog.take(now, fits, queue=queue)
                if not more:
                    break
                chosen += more
            fails = len(chosen)
            while fails - fits > 1:
                middle = (fits + fails) // 2
                fits, fails = (middle, fails) if measure(chosen[:middle]) <= limit else (fits, middle)
    except Exception:  # raised by the user's function; the sizes of the single items are known and must suffice
        fits = by_sum
    backlog.put_back(chosen[fits:])
    return chosen[:fits]
