"""How long answers take: a moving average and quantiles in constant memory.

Quantiles come from counts in logarithmic buckets of 10 % width, as in DDSketch (Masson et al., VLDB 2019), halved every
thousand answers so that old ones fade.
"""

from __future__ import annotations

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
