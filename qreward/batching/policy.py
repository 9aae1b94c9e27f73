"""When a batch may go, and what goes into it.

Pure: no clock, no asyncio. Natural batching: what arrives while all slots are busy is the next batch, so batches grow with load and
nothing waits for a timer. With several slots the sends are paced, or all but one slot would be spent on single items.

How large a batch may become when that is to be found out: larger while that brings more items a second.

Pure. The rule is Clipper's (Crankshaw et al., "Clipper", NSDI 2017): additive increase, a backoff of 10 % on failure.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from qreward.batching.backlog import ALL, Backlog, Line
from qreward.batching.settings import Settings

START = 8
BACKOFF = 0.9
GAIN = 1.02
"""How much more items a second a step must bring. A step is a quarter: with a batch of a + b*n seconds it stops at 90 % of 1/b."""
GROUP = 3
"""Full batches that are measured together."""
REST = 50
"""Groups after which a step that did not pay, or failed, is tried again."""


class SizeCap:
    """The largest batch, in whatever unit a batch's size is counted.

    Attributes:
        limit: the cap; at least 1.
    """

    __slots__ = ("_batches", "_best", "_good", "_rest", "_seconds", "_size", "limit")

    def __init__(self) -> None:
        self.limit = START
        self._good = START  # the largest limit that paid
        self._best = 0.0  # items a second at that limit
        self._rest = 0
        self._begin()

    def done(self, limit: float, size: float, seconds: float) -> None:
        """A batch that was full under ``limit`` took so long. Others tell nothing."""
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
        """A batch of this size was too large."""
        self.limit = self._good = max(1, int(min(size, self.limit) * BACKOFF))
        self._best, self._rest = 0.0, REST
        self._begin()

    def _judge(self, rate: float) -> None:
        if self._rest:
            self._rest -= 1
            self._best = rate  # what is true now is what the next step must beat
        elif rate >= self._best * GAIN or self.limit == self._good:
            self._best, self._good = rate, self.limit
            self.limit += max(1, self.limit // 4)
        else:
            self.limit, self._rest = self._good, REST

    def _begin(self) -> None:
        self._batches, self._size, self._seconds = 0, 0.0, 0.0


def says_too_large(error: BaseException) -> bool:
    """Whether a failure is likely to be of the batch's size: no memory (of a GPU too), no time, or HTTP 413."""
    if isinstance(error, MemoryError | TimeoutError) or getattr(error, "status_code", None) == 413:
        return True
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error).lower()


WEIGHT = 0.2
"""Of the latest batch in the moving average of how long batches take."""

Measure = Callable[[list[Any]], float]
"""What items cost together; asked only if that is not simply their number."""


class Forming:
    """The backlog of one queue, and the rules by which batches are taken from it.

    Attributes:
        backlog: what waits.
        cap: used if the settings say ``adaptive_batch_size``.
        seconds: how long a batch takes, moving average.
    """

    __slots__ = ("_first_sent", "_last_sent", "backlog", "cap", "seconds")

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.cap = SizeCap()
        self.seconds: float | None = None
        self._first_sent: float | None = None
        self._last_sent = -inf

    def limit(self, terms: Settings) -> int:
        """The largest batch, in items or in what ``batch_size_fn`` counts."""
        return min(terms.max_batch_size, self.cap.limit) if terms.adaptive_batch_size else terms.max_batch_size

    def next(
        self, now: float, terms: Settings, in_flight: int, slots: int, measure: Measure | None, flush: bool
    ) -> tuple[list[Any], float]:
        """The next batch if one may go, while a slot is free; else nothing, and when to ask again.

        Args:
            now: the time, in seconds.
            terms: the settings under which the batch is formed.
            in_flight: batches under way.
            slots: most batches under way.
            measure: what items cost together.
            flush: wait for nothing.
        """
        limit, linger = self.limit(terms), terms.batch_wait_timeout_s
        if not linger and not in_flight:  # the usual case needs no look at the lines
            line, at = self.backlog.first(), inf
        else:
            line, at = self._ready(now, limit, linger, in_flight, slots, flush, measure is None)
        if line is None:
            return [], at
        if measure is None:
            return self.backlog.take(now, limit, line=line), at
        return fit(self.backlog, line, now, limit, measure), at

    def sent(self, now: float) -> None:
        """A batch was sent."""
        self._last_sent = now
        if self._first_sent is None:
            self._first_sent = now

    def done(self, seconds: float) -> None:
        """A batch took so long."""
        self.seconds = seconds if self.seconds is None else self.seconds + WEIGHT * (seconds - self.seconds)

    def _pause(self, slots: int) -> float:
        """Seconds between two batches. Before any has ended, as long as all went on so far: else the first slots go to single items."""
        if self.seconds is not None:
            return self.seconds / slots
        return 0.0 if self._first_sent is None or slots == 1 else self._last_sent - self._first_sent

    def _ready(
        self, now: float, limit: int, linger: float, in_flight: int, slots: int, flush: bool, counted: bool
    ) -> tuple[Line | None, float]:
        """The line that goes first of those that may go now; None, and the time when one may, if there is none."""
        lines, ready, soonest = self.backlog.lines(), [], inf
        paced = self._last_sent + self._pause(slots) if in_flight else -inf
        for line in lines:
            at = line.oldest() + linger if linger else paced
            if at <= now or flush or line.full(limit if counted else ALL, limit):
                ready.append(line)
            elif at < soonest:
                soonest = at
        if len(ready) > 1:
            return min(ready, key=Line.sorts), now
        return (ready[0], now) if ready else (None, soonest)


def fit(backlog: Backlog, line: Line, now: float, limit: float, measure: Measure) -> list[Any]:
    """Take as many items as cost at most ``limit`` together.

    Each item's cost alone is known. If those add up, which one look at the whole tells, that is all. If they do not, as when
    everything is padded to the longest, the largest head that fits is searched in a logarithmic number of steps; for this
    a longer head must not cost less.
    """
    chosen = backlog.take(now, max_cost=limit, line=line)
    simple = len(chosen)
    chosen += backlog.take(now, 1, line=line)  # the first that should not fit
    if len(chosen) > 1:
        try:
            if measure(chosen) != sum(item.cost for item in chosen):
                return _search(backlog, line, now, chosen, limit, measure)
        except Exception:  # noqa: S110 - of the caller's function; it did measure each item alone, and that has to do
            pass
    backlog.put_back(chosen[simple:])
    return chosen[:simple]


def _search(backlog: Backlog, line: Line, now: float, chosen: list[Any], limit: float, measure: Measure) -> list[Any]:
    """Double the head while it fits, then halve the interval in which the largest one lies."""
    fits = 1
    while measure(chosen) <= limit:
        fits = len(chosen)
        more = backlog.take(now, fits, line=line)
        if not more:
            return chosen
        chosen += more
    fails = len(chosen)
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if measure(chosen[:middle]) <= limit:
            fits = middle
        else:
            fails = middle
    backlog.put_back(chosen[fits:])
    return chosen[:fits]
