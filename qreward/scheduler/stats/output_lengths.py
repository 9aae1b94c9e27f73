"""Output lengths of the answers of a pool, in tokens, over all of its sources.

The time of an answer is the source's seconds per token times the length of the answer, and the length depends on the request only. So the
lengths seen at all sources predict how long an answer still takes that is not complete after a given number of tokens. A source that does
not report tokens is assumed to return answers of the pool's mean length.
"""

from __future__ import annotations

from math import inf

from qreward.scheduler.stats.latency import LatencyStats, Quantiles

ENOUGH = 100
"""Answers needed before ``rare`` and ``extreme`` are known."""
RARE, EXTREME = 0.99, 0.999
FADE = 4000
"""Answers after which older ones count half."""
REFRESH = 32
LONG = 0.03
"""A long answer is one exceeded by this share of the answers. Long answers, and not the mean, determine the end of a batch."""
STRETCH = 1.6
"""Least length of a long answer as a multiple of the tokens done already, where few answers were as long."""


class OutputLengths:
    """Distribution of output lengths, and predictions for answers in progress.

    Attributes:
        mean: tokens of an answer, moving average; 1 while no source reports tokens.
        rare, extreme: 99th and 99.9th percentile in tokens; inf before a hundred answers.
    """

    __slots__ = ("_beyond", "_fresh", "_sizes", "_told", "extreme", "mean", "rare")

    def __init__(self) -> None:
        self._sizes = Quantiles(fade_after=FADE)
        self._beyond: list[float] = []
        self._fresh = 0
        self._told = False
        self.mean = 1.0
        self.rare = self.extreme = inf

    def add(self, seconds: float, tokens: int | None, latency: LatencyStats) -> None:
        """Add an answer that took ``seconds`` at a source whose ``latency`` already includes it."""
        if tokens:
            self.mean += (tokens - self.mean) * (0.02 if self._told else 1.0)
            self._told = True
        pace = self.pace(latency)
        self._sizes.add(tokens or (seconds / pace if pace else self.mean))
        self._fresh += 1
        if self._fresh >= REFRESH:
            self._fresh = 0
            self._beyond = []
            if self._sizes.count >= ENOUGH:
                self.rare = self._sizes.at(RARE) or inf
                self.extreme = self._sizes.at(EXTREME) or inf

    def pace(self, latency: LatencyStats) -> float:
        """Return the seconds per token at a source, 0 if it has not answered yet."""
        return latency.pace if latency.told else latency.pace / self.mean

    def long(self, least: float) -> float:
        """Return the length in tokens of a long answer among those longer than ``least``."""
        if not self._beyond:
            self._beyond = self._sizes.beyond(LONG)
        return max(self._beyond[self._sizes.bucket(least)], STRETCH * least)

    def at(self, quantile: float) -> float | None:
        """Return a quantile of the lengths in tokens, or None without answers."""
        return self._sizes.at(quantile)
