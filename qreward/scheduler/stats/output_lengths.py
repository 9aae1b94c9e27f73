"""How long the answers of a pool are, in output tokens, whichever source gave them.

Time at a source is its pace (seconds a token) times the length of the answer, and the length is the request's own. So
what was seen anywhere tells how long an answer may be that is not there after so many tokens. A source that does not
tell tokens is taken to give answers of the pool's mean length.
"""

from __future__ import annotations

from math import inf

from qreward.scheduler.stats.latency import Latency, Quantiles

ENOUGH = 100
"""Answers before which nothing is called rare or extreme."""
RARE, EXTREME = 0.99, 0.999
FADE = 4000
"""Answers after which older ones count half."""
REFRESH = 32
LONG = 0.03
"""Share of the longer answers that make a long one: it is they that end a bulk, not the mean."""
STRETCH = 1.6
"""Times what is done already that a long one is at least, where few answers were as long."""


class OutputLengths:
    """Lengths of answers, and what they say of one that is under way.

    Attributes:
        mean: tokens of an answer, moving average; 1 while no source tells tokens.
        rare, extreme: the lengths that one in a hundred, one in a thousand exceeds; inf before a hundred answers.
    """

    __slots__ = ("_beyond", "_fresh", "_sizes", "_told", "extreme", "mean", "rare")

    def __init__(self) -> None:
        self._sizes = Quantiles(fade_after=FADE)
        self._beyond: list[float] = []
        self._fresh = 0
        self._told = False
        self.mean = 1.0
        self.rare = self.extreme = inf

    def add(self, seconds: float, tokens: int | None, latency: Latency) -> None:
        """Take an answer that took so long at a source with that latency, which knows of it already."""
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

    def pace(self, latency: Latency) -> float:
        """Seconds a token at a source, 0 if it has shown nothing yet."""
        return latency.pace if latency.told else latency.pace / self.mean

    def long(self, least: float) -> float:
        """The length of a long answer among those longer than ``least``."""
        if not self._beyond:
            self._beyond = self._sizes.beyond(LONG)
        return max(self._beyond[self._sizes.bucket(least)], STRETCH * least)

    def at(self, quantile: float) -> float | None:
        """A quantile of the lengths, or None if none is known."""
        return self._sizes.at(quantile)
