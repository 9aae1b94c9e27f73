"""How long answers take: a moving average and quantiles in constant memory.

Quantiles come from counts in logarithmic buckets of 10 % width, as in DDSketch (Masson et al., VLDB 2019), halved every
thousand answers so that old ones fade.

How soon and how steadily a source streams, and what is too long: for the first token, and between two.

First token: clamp(4 x p99, 5 s, 120 s), doubled each time the task has run into a limit before, for it may only be long.
Gap: clamp(20 x p99, 5 s, 60 s), and 60 s before anything is known. A first token has no limit here before 20 of them were
seen: the limit of the attempt holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

_GROWTH = 0.1
_SMALLEST = 1e-4
_OFFSET = -int(log(_SMALLEST) / _GROWTH)
_BUCKETS = 256


class Quantiles:
    """Quantiles of positive numbers, exact to about 5 %."""

    __slots__ = ("_counts", "count", "fade_after")

    def __init__(self, fade_after: int | None = None) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.fade_after = fade_after

    def add(self, value: float) -> None:
        bucket = int(log(value) / _GROWTH + _OFFSET) if value > _SMALLEST else 0  # not by ``bucket()``: each answer comes here thrice
        self._counts[bucket if bucket < _BUCKETS else _BUCKETS - 1] += 1
        self.count += 1
        if self.count == self.fade_after:
            self._counts = [count >> 1 for count in self._counts]
            self.count = sum(self._counts)

    def bucket(self, value: float) -> int:
        """Where a value is counted."""
        return min(_BUCKETS - 1, int(log(value) / _GROWTH + _OFFSET)) if value > _SMALLEST else 0

    def beyond(self, share: float) -> list[float]:
        """For each bucket the value that a share of all values in later buckets exceeds, 0 if there are none."""
        found, rank, above = [0.0] * _BUCKETS, 0, 0.0  # ``above``: values in buckets after ``top``
        top = _BUCKETS - 1
        for bucket in range(_BUCKETS - 1, -1, -1):
            while rank and above + self._counts[top] < share * rank:
                above += self._counts[top]
                top -= 1
            found[bucket] = exp((top - _OFFSET + 0.5) * _GROWTH) if rank else 0.0
            rank += self._counts[bucket]
        return found

    def at(self, quantile: float) -> float | None:
        """The value below which the share ``quantile`` of all lies, or None if nothing was added."""
        rank = quantile * self.count
        for bucket, count in enumerate(self._counts):
            rank -= count
            if count and rank <= 0:
                return exp((bucket - _OFFSET + 0.5) * _GROWTH)
        return None


class Latency:
    """What one source has shown: mean seconds of an answer, a slow one's, and seconds a token.

    The mean starts at the first answer and moves 10 % of the way with each; quantiles are refreshed every 32. Seconds a
    token is a ratio of sums over about the last 20 answers: a mean of ratios would follow the shortest ones.

    Attributes:
        mean, slow: seconds: mean and 99 % quantile; the quantile is None before 20 answers.
        quick: 5 % quantile, 0 before 20 answers.
        pace: seconds a token, 0 while it is unknown.
        told: the source tells tokens; if not, ``pace`` is seconds an answer.
    """

    __slots__ = ("_answers", "_quantiles", "_seconds", "_tokens", "mean", "pace", "quick", "slow", "told")

    MEMORY = 0.95

    def __init__(self) -> None:
        self.mean = self.pace = self.quick = 0.0
        self.slow: float | None = None
        self.told = False
        self._answers = 0
        self._seconds = self._tokens = 0.0
        self._quantiles = Quantiles(fade_after=1000)

    def add(self, seconds: float, tokens: int | None = None) -> None:
        """Take an answer of so many output tokens, if that is told."""
        self.mean += (seconds - self.mean) * (0.1 if self._answers > 10 else 1.0 / (self._answers + 1))
        self._answers += 1
        self._quantiles.add(seconds)
        if tokens and not self.told:
            self.told, self._seconds, self._tokens = True, 0.0, 0.0
        self._seconds = self.MEMORY * self._seconds + seconds
        self._tokens = self.MEMORY * self._tokens + (tokens or 1)
        self.pace = self._seconds / self._tokens
        if self._answers >= 20 and (self._answers % 32 == 0 or self.slow is None):
            self.slow = self._quantiles.at(0.99)
            self.quick = self._quantiles.at(0.05) or 0.0

    def at(self, quantile: float) -> float | None:
        """A quantile over about the last thousand answers, or None."""
        return self._quantiles.at(quantile)


KNOWN = 20
"""Values before a quantile is believed."""
MEMORY = 1000
FIRST_FACTOR, FIRST_LEAST, FIRST_MOST = 4.0, 5.0, 120.0
GAP_FACTOR, GAP_LEAST, GAP_MOST = 20.0, 5.0, 60.0
MOST_DOUBLINGS = 3


class StreamTiming:
    """Of one source.

    Example:
        >>> tempo = Tempo()
        >>> for _ in range(KNOWN):
        ...     tempo.began(2.0)
        >>> 7 < tempo.first_limit(0) < 9, tempo.gap_limit()
        (True, 60.0)
    """

    __slots__ = ("_first", "_gaps")

    def __init__(self) -> None:
        self._first = Quantiles(fade_after=MEMORY)
        self._gaps = Quantiles(fade_after=MEMORY)

    def began(self, seconds: float) -> None:
        """A first token came after so many seconds."""
        self._first.add(seconds)

    def went_on(self, gaps: Iterable[float]) -> None:
        """So many seconds passed between tokens."""
        for gap in gaps:
            self._gaps.add(gap)

    def first(self, quantile: float) -> float | None:
        """Seconds within which that share of first tokens came, None before enough is known."""
        return self._first.at(quantile) if self._first.count >= KNOWN else None

    def first_limit(self, overdue: int) -> float | None:
        """Seconds a first token may take of a task that has run into a limit so often; None if nothing is known."""
        slow = self.first(0.99)
        if slow is None:
            return None
        return min(FIRST_MOST, max(FIRST_LEAST, FIRST_FACTOR * slow) * 2.0 ** min(overdue, MOST_DOUBLINGS))

    def gap_limit(self) -> float:
        """Seconds that may pass between two tokens."""
        slow = self._gaps.at(0.99) if self._gaps.count >= KNOWN else None
        return GAP_MOST if slow is None else min(GAP_MOST, max(GAP_LEAST, GAP_FACTOR * slow))
