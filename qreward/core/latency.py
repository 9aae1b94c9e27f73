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
        bucket = int(log(value) / _GROWTH + _OFFSET) if value > _SMALLEST else 0
        self._counts[bucket if bucket < _BUCKETS else -1] += 1
        self.count += 1
        if self.count == self.fade_after:
            self._counts = [count >> 1 for count in self._counts]
            self.count = sum(self._counts)

    def at(self, quantile: float) -> float | None:
        """The value below which the share ``quantile`` of all lies, or None if nothing was added."""
        rank = quantile * self.count
        for bucket, count in enumerate(self._counts):
            rank -= count
            if count and rank <= 0:
                return exp((bucket - _OFFSET + 0.5) * _GROWTH)
        return None


class Latency:
    """What one source has shown: mean seconds of an answer, and a slow one's.

    The mean starts at the first answer and moves 10 % of the way with each; the 99 % quantile is refreshed every 32.
    """

    __slots__ = ("_answers", "_quantiles", "mean", "slow")

    def __init__(self) -> None:
        self.mean = 0.0
        self.slow: float | None = None
        self._answers = 0
        self._quantiles = Quantiles(fade_after=1000)

    def add(self, seconds: float) -> None:
        self.mean += (seconds - self.mean) * (0.1 if self._answers > 10 else 1.0 / (self._answers + 1))
        self._answers += 1
        self._quantiles.add(seconds)
        if self._answers >= 20 and (self._answers % 32 == 0 or self.slow is None):
            self.slow = self._quantiles.at(0.99)

    def at(self, quantile: float) -> float | None:
        """A quantile over about the last thousand answers, or None."""
        return self._quantiles.at(quantile)
