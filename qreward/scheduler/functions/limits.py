"""Options of calls of decorated functions, and the limits that these options set: adaptive limits, rate limits, and circuit breakers."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple


class Pause(NamedTuple):
    """``retry_interval`` and ``retry_max_interval``; see ``scheduler.failure_policy.backoff``."""

    base: float
    cap: float


class Rate(NamedTuple):
    """``limit_size`` and ``limit_window``: at most ``size`` tries of a key may start in any ``window`` seconds."""

    size: int
    window: float


class Hedging(NamedTuple):
    """When a call is hedged. Each call adds ``share`` hedges to the budget of all calls; one call has at most ``most`` hedges."""

    after: float | None  # seconds; None to use a quantile of the seconds that successful tries took
    quantile: float
    most: int
    share: float


class Breaking(NamedTuple):
    """``threshold`` failures in a row open the circuit breaker of a key for ``recovery`` seconds."""

    threshold: int
    recovery: float


class Adapting(NamedTuple):
    """The bounds of an adaptive limit, and when it falls: share of failed tries, and mean seconds of a successful try (or None)."""

    least: int
    most: int
    errors: float
    seconds: float | None


class FunctionOptions(NamedTuple):
    """Options of a call of a decorated function. None switches a limit off."""

    level: int = 5  # priority, 0 (most urgent) to 9
    timeout: float | None = None
    retries: int = 0
    pause: Pause = Pause(1.0, 60.0)
    parallel_tries: int = 1
    most: int | None = None  # tries in flight over all functions of the pool
    rate: Rate | None = None
    hedging: Hedging | None = None
    breaking: Breaking | None = None
    adapting: Adapting | None = None  # adapts the rate limit of each key if there is one, and otherwise the pool's concurrency limit
    paced: bool = True  # False: tries do not wait for the rate limit, but count towards it
    noted: bool = False  # decisions are noted in ``Call.notes``


FALL, RISE = 0.5, 1.1
"""``FALL``: factor on an adaptive limit when it falls. ``RISE``: factor on the limit when it rises; the limit rises by at least 1."""
LEAST_ROUND = 5
"""Minimum number of tries that must have ended before an adaptive limit is evaluated."""


class AimdLimit:
    """Adapts a limit between two bounds by additive increase and multiplicative decrease (AIMD; Chiu and Jain, 1989)."""

    __slots__ = ("_bounds", "_exact", "_failed", "_fell_at", "_ok", "_seconds", "_since", "config", "limit", "wanted")

    def __init__(self, config: Adapting, start: float, most: float = inf) -> None:
        self.limit = 0
        self._fell_at = self._since = -inf
        self._exact = start
        self.config, self._bounds = config, (inf, inf)
        self.change(config, most)

    def change(self, config: Adapting, most: float = inf) -> None:
        """Replace the config and bounds, if they differ. The present limit is kept as far as the new bounds allow."""
        bounds = config.least, min(config.most, most)
        if bounds != self._bounds or config != self.config:
            self.config, self._bounds = config, bounds
            self._begin_round(self._since, self._exact)

    def ok(self, now: float, sent_at: float, seconds: float) -> bool:
        """Record that a try succeeded after ``seconds``. As the other methods, returns True if the limit has changed."""
        return sent_at >= self._since and self._evaluate(now, 1, 0, seconds)

    def failed(self, now: float, sent_at: float) -> bool:
        return sent_at >= self._since and self._evaluate(now, 0, 1, 0.0)

    def overloaded(self, now: float, sent_at: float) -> bool:
        """Let the limit fall at once, unless the try started before the limit last fell."""
        return sent_at >= self._fell_at and self._fall(now)

    def _evaluate(self, now: float, ok: int, failed: int, seconds: float) -> bool:
        self._ok += ok
        self._failed += failed
        self._seconds += seconds
        ended = self._ok + self._failed
        if ended < max(LEAST_ROUND, self.limit):
            return False
        errors, slow = self._failed / ended, self.config.seconds
        if errors > self.config.errors or (slow is not None and self._ok and self._seconds / self._ok > slow):
            return self._fall(now)
        rise = self.wanted and errors <= self.config.errors / 2
        return self._begin_round(now, max(self._exact + 1, self._exact * RISE) if rise else self._exact)

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
        self.wanted = False
        if self.limit != before:
            self._since = now
        return self.limit != before


def adapted(adaptive: AimdLimit | None, config: Adapting | None, start: float, most: float) -> AimdLimit | None:
    if config is None:
        return None
    if adaptive is None:
        return AimdLimit(config, start, most)
    adaptive.change(config, most)
    return adaptive


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

    def give_back(self, started_at: float) -> None:
        """Forget a start that was taken at this time, because the try never ran."""
        if started_at in self._starts:
            self._starts.remove(started_at)

    def take(self, now: float) -> None:
        starts, window = self._starts, self.window
        starts.append(now)
        while starts[0] + window <= now:  # the sum is written as in ``ready_at``, because a difference would be rounded differently
            starts.popleft()


class Breaker:
    """A circuit breaker (Nygard, "Release It!", 2007). It is closed, open until a time, or half-open with one probe call in flight."""

    __slots__ = ("_opened_at", "config", "failures", "probe")

    def __init__(self, config: Breaking) -> None:
        self.config = config
        self.failures = 0
        self.probe: object = None
        self._opened_at = -inf

    @property
    def open_until(self) -> float:
        """No call is allowed before this time; -inf while closed."""
        return self._opened_at + self.config.recovery

    @property
    def state(self) -> str:
        if self._opened_at == -inf:
            return "closed"
        return "open" if self.probe is None else "half-open"

    def trusts(self, call: object) -> bool:
        """Return whether the breaker is closed, or the call is its probe."""
        return self._opened_at == -inf or self.probe is call

    def admits(self, now: float, call: object) -> bool:
        """Return whether a call may be tried. It may become the probe, so its end must be reported by :meth:`over`."""
        if self.trusts(call):
            return True
        if self.probe is None and now >= self.open_until:
            self.probe = call
            return True
        return False

    def ok(self, call: object) -> None:
        """Record that a try succeeded. While the breaker is not closed, only the probe counts; all other tries started before it opened."""
        if self.trusts(call):
            self.failures, self._opened_at, self.probe = 0, -inf, None

    def failed(self, now: float, call: object) -> bool:
        """Record that a try failed. Returns True if this failure opens the breaker."""
        self.failures += 1
        if not self.trusts(call) or (self.probe is None and self.failures < self.config.threshold):
            return False
        self._opened_at, self.probe = now, None
        return True

    def over(self, call: object) -> None:
        """Record that a call has ended. If it is the probe, and has neither succeeded nor failed, another call may become the probe."""
        if self.probe is call:
            self.probe = None
