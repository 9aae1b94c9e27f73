"""The limits of one key or pool of functions: an adaptive limit, an exact rate limit, and a circuit breaker."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

FALL, RISE = 0.5, 1.1
"""``FALL``: factor on an adaptive limit when it falls. ``RISE``: factor on the limit when it rises; the limit rises by at least 1."""
LEAST_ROUND = 5  # minimum number of tries that must have ended before an adaptive limit is evaluated


class AimdLimit:
    """Adapts a limit between two bounds (AIMD; Chiu and Jain, 1989), each time as many tries have ended as it allows (at least 5).

    Only tries count that started after its last change, so that the effect of a change is seen before the next change. ``options`` has the
    settings ``adaptive_*`` of ``ScheduleConfig``, and ``most`` is another upper bound.
    """

    __slots__ = ("_bounds", "_exact", "_failed", "_fell_at", "_ok", "_seconds", "_since", "limit", "options", "wanted")

    def __init__(self, start: float, options: Any, most: float = inf) -> None:
        self.limit = 0
        self._fell_at = self._since = -inf
        self._exact = start
        self._bounds = (0.0, 0.0)
        self.follow(options, most)

    def follow(self, options: Any, most: float = inf) -> None:
        """Use other options. The limit is kept as far as the new bounds allow."""
        self.options = options
        bounds = options.adaptive_limit_min, min(options.adaptive_limit_max, most)
        if bounds != self._bounds:
            self._bounds = bounds
            self._begin_round(self._since, self._exact)

    def ended(self, now: float, sent_at: float, seconds: float | None) -> bool:
        """Record that a try succeeded after ``seconds``, or failed (None). As ``overloaded``, returns True if the limit has changed."""
        if sent_at < self._since:
            return False
        if seconds is None:
            self._failed += 1
        else:
            self._ok += 1
            self._seconds += seconds
        ended = self._ok + self._failed
        if ended < max(LEAST_ROUND, self.limit):
            return False
        errors, most_errors, slow = self._failed / ended, self.options.adaptive_error_threshold, self.options.adaptive_latency_threshold
        if errors > most_errors or (slow is not None and self._ok and self._seconds / self._ok > slow):
            return self._fall(now)
        rise = self.wanted and errors <= most_errors / 2
        return self._begin_round(now, max(self._exact + 1, self._exact * RISE) if rise else self._exact)

    def overloaded(self, now: float, sent_at: float) -> bool:
        """Let the limit fall at once, unless the try started before the limit last fell."""
        return sent_at >= self._fell_at and self._fall(now)

    def _fall(self, now: float) -> bool:
        self._fell_at = now
        return self._begin_round(now, self._exact * FALL)

    def _begin_round(self, now: float, limit: float) -> bool:
        least, most = self._bounds
        before = self.limit
        self._exact = min(max(limit, least), most)
        self.limit = int(self._exact)
        self._ok = self._failed = 0
        self._seconds = 0.0
        self.wanted = False  # a call had to wait for the limit since, so a higher limit would help
        if self.limit != before:
            self._since = now
        return self.limit != before


class SlidingWindowLimit:
    """Allows at most ``size`` starts in any half-open interval of ``window`` seconds. Both may be changed; earlier starts still count."""

    __slots__ = ("_starts", "size", "window")

    def __init__(self, size: int, window: float) -> None:
        self.size = size
        self.window = window
        self._starts: deque[float] = deque()

    @property
    def ready_at(self) -> float:
        """Earliest time at which the next try may start. If the time has passed, the next try may start now."""
        starts = self._starts
        return starts[len(starts) - self.size] + self.window if len(starts) >= self.size else -inf

    @property
    def clear_at(self) -> float:
        """Time after which past starts no longer count."""
        return self._starts[-1] + self.window if self._starts else -inf

    def take(self, now: float) -> None:
        starts, window = self._starts, self.window
        starts.append(now)
        while starts[0] + window <= now:  # the sum is written as in ``ready_at``, because a difference would be rounded differently
            starts.popleft()


class Breaker:
    """A circuit breaker (Nygard, "Release It!", 2007). It is closed, open until a time, or half-open with one probe call in flight."""

    __slots__ = ("_opened_at", "failures", "probe", "recovery", "threshold")

    def __init__(self) -> None:
        self.threshold: int  # failures in a row that open the breaker
        self.recovery: float  # seconds for which it stays open
        self.failures = 0  # in a row
        self.probe: object = None  # the call whose outcome decides while the breaker is half-open
        self._opened_at = -inf

    @property
    def open_until(self) -> float:
        """No call is allowed before this time; -inf while closed."""
        return self._opened_at + self.recovery

    @property
    def is_closed(self) -> bool:
        return self._opened_at == -inf

    def trusts(self, call: object) -> bool:
        """Return whether the breaker is closed, or the call is its probe."""
        return self._opened_at == -inf or self.probe is call

    def admits(self, now: float, call: object) -> bool:
        """Return whether a call may be tried. It may become the probe, so its end must be reported by :meth:`over`."""
        if self.probe is None and self._opened_at > -inf and now >= self.open_until:
            self.probe = call
        return self.trusts(call)

    def ok(self, call: object) -> None:
        """Record that a try succeeded. While the breaker is not closed, only the probe counts; all other tries started before it opened."""
        if self.trusts(call):
            self.failures, self._opened_at, self.probe = 0, -inf, None

    def failed(self, now: float, call: object) -> bool:
        """Record that a try failed. Returns True if this failure opens the breaker."""
        self.failures += 1
        if not self.trusts(call) or (self.probe is None and self.failures < self.threshold):
            return False
        self._opened_at, self.probe = now, None
        return True

    def over(self, call: object) -> None:
        """Record that a call has ended. If it is the probe, and has neither succeeded nor failed, another call may become the probe."""
        if self.probe is call:
            self.probe = None
