"""Latency of answers and timing of streams, in constant memory.

``LatencyStats`` keeps moving averages and quantiles of the time of an answer. Quantiles come from counts in logarithmic buckets of 10 %
width, as in DDSketch (Masson et al., VLDB 2019); the counts are halved every thousand answers so that old ones fade.

``StreamTiming`` keeps the time to the first token and the gaps between tokens, and derives limits for both:

First token: clamp(4 x p99, 5 s, 120 s), doubled each time the task has exceeded a limit before, for the task may just be long. Before 20
first tokens were seen only the time limit of the attempt applies.
Gap: clamp(20 x p99, 5 s, 60 s), and 60 s before 20 gaps were seen.
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
        bucket = int(log(value) / _GROWTH + _OFFSET) if value > _SMALLEST else 0  # inlined from ``bucket()``: hot path
        self._counts[bucket if bucket < _BUCKETS else _BUCKETS - 1] += 1
        self.count += 1
        if self.count == self.fade_after:
            self._counts = [count >> 1 for count in self._counts]
            self.count = sum(self._counts)

    def bucket(self, value: float) -> int:
        """Return the number of the bucket in which a value is counted."""
        return min(_BUCKETS - 1, int(log(value) / _GROWTH + _OFFSET)) if value > _SMALLEST else 0

    def beyond(self, share: float) -> list[float]:
        """Return for each bucket the value that ``share`` of all values in later buckets exceed, 0 if there are none."""
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
        """Return the value below which the share ``quantile`` of all values lies, or None without values."""
        rank = quantile * self.count
        for bucket, count in enumerate(self._counts):
            rank -= count
            if count and rank <= 0:
                return exp((bucket - _OFFSET + 0.5) * _GROWTH)
        return None


class LatencyStats:
    """Latency of one source: mean and quantiles of the time of an answer, and seconds per token.

    The mean starts at the first answer and moves 10 % of the way with each later one. Quantiles are refreshed every 32 answers. Seconds per
    token is a ratio of sums over about the last 20 answers, because a mean of ratios would follow the shortest answers.

    Attributes:
        mean: mean time of an answer in seconds.
        slow: 99th percentile in seconds, None before 20 answers.
        quick: 5th percentile in seconds, 0 before 20 answers.
        pace: seconds per token, 0 while unknown.
        told: the source reports tokens; if it does not, ``pace`` is seconds per answer.
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
        """Add an answer and its output tokens, None if the source does not report them."""
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
        """Return a quantile in seconds over about the last thousand answers, or None without answers."""
        return self._quantiles.at(quantile)


KNOWN = 20
"""Values needed before a quantile is used."""
MEMORY = 1000
FIRST_FACTOR, FIRST_LEAST, FIRST_MOST = 4.0, 5.0, 120.0
GAP_FACTOR, GAP_LEAST, GAP_MOST = 20.0, 5.0, 60.0
MOST_DOUBLINGS = 3


class StreamTiming:
    """Stream timing of one source.

    Example:
        >>> timing = StreamTiming()
        >>> for _ in range(KNOWN):
        ...     timing.began(2.0)
        >>> 7 < timing.first_limit(0) < 9, timing.gap_limit()
        (True, 60.0)
    """

    __slots__ = ("_first", "_gaps")

    def __init__(self) -> None:
        self._first = Quantiles(fade_after=MEMORY)
        self._gaps = Quantiles(fade_after=MEMORY)

    def began(self, seconds: float) -> None:
        """A first token arrived ``seconds`` after its request was sent."""
        self._first.add(seconds)

    def went_on(self, gaps: Iterable[float]) -> None:
        """Add gaps between tokens, in seconds."""
        for gap in gaps:
            self._gaps.add(gap)

    def first(self, quantile: float) -> float | None:
        """Return the seconds within which the share ``quantile`` of first tokens arrived, or None before 20 of them."""
        return self._first.at(quantile) if self._first.count >= KNOWN else None

    def first_limit(self, overdue: int) -> float | None:
        """Return the seconds a first token may take, for a task that exceeded a limit ``overdue`` times; None before 20 first tokens."""
        slow = self.first(0.99)
        if slow is None:
            return None
        return min(FIRST_MOST, max(FIRST_LEAST, FIRST_FACTOR * slow) * 2.0 ** min(overdue, MOST_DOUBLINGS))

    def gap_limit(self) -> float:
        """Return the seconds that may pass between two tokens."""
        slow = self._gaps.at(0.99) if self._gaps.count >= KNOWN else None
        return GAP_MOST if slow is None else min(GAP_MOST, max(GAP_LEAST, GAP_FACTOR * slow))
