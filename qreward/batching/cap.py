"""How large a batch may become when that is to be found out: larger while that brings more items a second.

Pure. The rule is Clipper's (Crankshaw et al., "Clipper", NSDI 2017): additive increase, a backoff of 10 % on failure.
"""

from __future__ import annotations

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
