"""A limit that moves with what calls show: AIMD (Chiu and Jain, 1989), halved when too much fails or takes too long, a tenth more when not.

It is judged a round at a time, a round being as many tries as the limit, all of them begun under it: what follows a change is seen
before the next.
"""

from __future__ import annotations

from math import inf

from qreward.core.calls.terms import Adapting

FALL, RISE = 0.5, 1.1
LEAST_ROUND = 5
"""Tries below which a share of failures says nothing."""


class Adaptive:
    """One limit between two bounds.

    Args:
        terms: the bounds, and what makes it fall.
        start: what to begin with, as far as the bounds allow.
        most: what is set to be the most, whatever the terms allow.

    Attributes:
        limit: what is allowed now.
        wanted: somebody had to wait for it in this round: more would be of use.
    """

    __slots__ = ("_bounds", "_exact", "_failed", "_fell_at", "_ok", "_seconds", "_since", "limit", "terms", "wanted")

    def __init__(self, terms: Adapting, start: float, most: float = inf) -> None:
        self.limit = 0
        self._fell_at = self._since = -inf
        self._exact = start
        self.change(terms, most)

    def change(self, terms: Adapting, most: float = inf) -> None:
        """Keep to these from now on."""
        self.terms = terms
        self._bounds = min(terms.least, most), min(terms.most, most)
        self._set(self._since, self._exact)

    def holds(self, terms: Adapting, most: float) -> bool:
        """It keeps to these already."""
        return self.terms == terms and self._bounds == (min(terms.least, most), min(terms.most, most))

    def ok(self, now: float, sent_at: float, seconds: float) -> bool:
        """A try succeeded after so many seconds. True if the limit has changed."""
        if sent_at < self._since:
            return False
        self._ok += 1
        self._seconds += seconds
        return self._judge(now)

    def failed(self, now: float, sent_at: float) -> bool:
        """A try failed. True if the limit has changed."""
        if sent_at < self._since:
            return False
        self._failed += 1
        return self._judge(now)

    def overloaded(self, now: float, sent_at: float) -> bool:
        """A try was turned away because there were too many: no more need be seen. True if the limit has changed.

        What was sent before the limit last fell tells nothing new.
        """
        return sent_at >= self._fell_at and self._fall(now)

    def _judge(self, now: float) -> bool:
        seen = self._ok + self._failed
        if seen < max(LEAST_ROUND, self.limit):
            return False
        errors, slow = self._failed / seen, self.terms.seconds
        if errors > self.terms.errors or (slow is not None and self._ok and self._seconds / self._ok > slow):
            return self._fall(now)
        rise = self.wanted and errors <= self.terms.errors / 2
        return self._set(now, max(self._exact + 1, self._exact * RISE) if rise else self._exact)

    def _fall(self, now: float) -> bool:
        self._fell_at = now
        return self._set(now, self._exact * FALL)

    def _set(self, now: float, limit: float) -> bool:
        """Begin a round."""
        least, most = self._bounds
        before = self.limit
        self._exact = min(max(limit, least), most)
        self.limit = int(self._exact)
        self._ok = self._failed = 0
        self._seconds = 0.0
        self.wanted = False
        if self.limit != before:
            self._since = now
        return self.limit != before


def kept(adaptive: Adaptive | None, terms: Adapting | None, start: float, most: float) -> Adaptive | None:
    """The limit under other terms; what it was found to be is kept as far as they allow."""
    if terms is None:
        return None
    if adaptive is None:
        return Adaptive(terms, start, most)
    if not adaptive.holds(terms, most):
        adaptive.change(terms, most)
    return adaptive
