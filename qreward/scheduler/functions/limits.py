"""A limit that moves with what calls show: AIMD (Chiu and Jain, 1989), halved when too much fails or takes too long, a tenth more when not.

It is judged a round at a time, a round being as many tries as the limit, all of them begun under it: what follows a change is seen
before the next.

A rate limit that holds in any window: the times of the last starts.

A bucket that refills lets twice its size through in a window that begins with the bucket full. This remembers each start of the last
window instead, so the next one may come as soon as the window allows and never sooner. O(1) a start, one float of memory each.

A circuit breaker that does what it is told: so many failures in a row open it, after a while one call tries again.

Nygard, "Release It!" (2007). Unlike ``scheduler.health``, which finds out by itself whether an endpoint is well, the numbers are given.
"""

from __future__ import annotations

from collections import deque
from math import inf

from qreward.scheduler.functions.call import Adapting, Breaking

FALL, RISE = 0.5, 1.1
LEAST_ROUND = 5
"""Tries below which a share of failures says nothing."""


class AimdLimit:
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


def kept(adaptive: AimdLimit | None, terms: Adapting | None, start: float, most: float) -> AimdLimit | None:
    """The limit under other terms; what it was found to be is kept as far as they allow."""
    if terms is None:
        return None
    if adaptive is None:
        return AimdLimit(terms, start, most)
    if not adaptive.holds(terms, most):
        adaptive.change(terms, most)
    return adaptive


class SlidingWindowLimit:
    """At most ``size`` starts in any half-open interval of ``window`` seconds."""

    __slots__ = ("_starts", "size", "window")

    def __init__(self, size: int, window: float) -> None:
        self.size = size
        self.window = window
        self._starts: deque[float] = deque()

    @property
    def ready_at(self) -> float:
        """The earliest time at which one more may start; a time in the past means now."""
        starts = self._starts
        return starts[len(starts) - self.size] + self.window if len(starts) >= self.size else -inf

    @property
    def clear_at(self) -> float:
        """From then on it is as if nothing had ever started."""
        return self._starts[-1] + self.window if self._starts else -inf

    def take(self, now: float) -> None:
        """One starts."""
        starts, window = self._starts, self.window
        starts.append(now)
        while starts[0] + window <= now:  # the sum that ``ready_at`` is: a difference would be rounded otherwise
            starts.popleft()

    def change(self, size: int, window: float) -> None:
        """Hold another limit from now on; what started counts under it."""
        self.size, self.window = size, window


class Breaker:
    """Closed, open until a time, or half-open with one call under way that decides.

    Attributes:
        terms: may be changed at any time.
        probe: the call that decides, while half-open.
        failures: in a row.
    """

    __slots__ = ("_opened_at", "failures", "probe", "terms")

    def __init__(self, terms: Breaking) -> None:
        self.terms = terms
        self.failures = 0
        self.probe: object = None
        self._opened_at = -inf

    @property
    def open_until(self) -> float:
        """No call before this time; -inf while closed."""
        return self._opened_at + self.terms.recovery

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        if self._opened_at == -inf:
            return "closed"
        return "open" if self.probe is None else "half-open"

    def trusts(self, call: object) -> bool:
        """Whether a call may go on as if nothing had happened: nothing has, or it is the one that finds out."""
        return self._opened_at == -inf or self.probe is call

    def admits(self, now: float, call: object) -> bool:
        """Whether a call may be tried. If it is the one that is to find out, it must be told of by :meth:`over`."""
        if self.trusts(call):
            return True
        if self.probe is None and now >= self.open_until:
            self.probe = call
            return True
        return False

    def ok(self, call: object) -> None:
        """A try succeeded. While the breaker is not closed, only that of one call tells anything: others began before it opened."""
        if self.trusts(call):
            self.failures, self._opened_at, self.probe = 0, -inf, None

    def failed(self, now: float, call: object) -> bool:
        """A try failed. True if the breaker has opened now."""
        self.failures += 1
        if not self.trusts(call) or (self.probe is None and self.failures < self.terms.threshold):
            return False
        self._opened_at, self.probe = now, None
        return True

    def over(self, call: object) -> None:
        """A call has ended: if it was to find out and did not, the next one is."""
        if self.probe is call:
            self.probe = None
