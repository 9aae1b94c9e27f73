"""Options of calls of decorated functions, and the limits that these options set: adaptive limits, rate limits, and circuit breakers.

The options are plain values, computed from the user's settings.

``AimdLimit`` uses additive increase and multiplicative decrease (AIMD; Chiu and Jain, 1989). The limit is halved when too many tries fail
or tries take too long. It is raised by a tenth, at least by 1, when few tries fail and a call had to wait for the limit. The limit is
evaluated each time as many tries have ended as the limit allows (at least 5). Only tries that started after the last change of the limit
count, so that the effect of a change is seen before the next change.

``SlidingWindowLimit`` is a rate limit that holds in every window. A token bucket is not used, because it allows twice its size in a window
that begins with a full bucket. This limit stores the time of each start within the last window. That takes constant time and the memory of
one float for each start.

``Breaker`` is a circuit breaker (Nygard, "Release It!", 2007). A number of failures in a row opens it. After some seconds one call is tried
again. The number of failures and the seconds are configured. In ``scheduler.health`` both are fixed.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple


class Pause(NamedTuple):
    """The longest waits in seconds: ``base`` before the first retry, ``cap`` before any retry. See ``scheduler.failure_policy.backoff``."""

    base: float
    cap: float


class Rate(NamedTuple):
    """Settings of a rate limit of each key: at most ``size`` tries may start in any ``window`` seconds."""

    size: int
    window: float


class Hedging(NamedTuple):
    """Settings that say when a call is hedged, that is, tried again while a try is in flight.

    Attributes:
        after: seconds after which a call is hedged; None to use the ``quantile`` of the seconds that successful tries took.
        quantile: a number between 0 and 1.
        most: maximum number of hedges per call.
        share: number of hedges that each call adds to the budget of all calls.
    """

    after: float | None
    quantile: float
    most: int
    share: float


class Breaking(NamedTuple):
    """Settings of a circuit breaker: ``threshold`` failures in a row open the circuit breaker of a key for ``recovery`` seconds."""

    threshold: int
    recovery: float


class Adapting(NamedTuple):
    """Settings of an adaptive limit.

    Attributes:
        least, most: the bounds of the limit.
        errors: share (0 to 1) of failed tries above which the limit falls.
        seconds: mean seconds of a successful try above which the limit falls; None if the limit does not depend on them.
    """

    least: int
    most: int
    errors: float
    seconds: float | None


class FunctionOptions(NamedTuple):
    """Options of a call of a decorated function.

    Attributes:
        level: priority, 0 (most urgent) to 9.
        timeout: seconds the whole call may take, or None.
        retries: maximum number of retries after failures.
        pause: backoff before retries.
        parallel_tries: maximum number of tries in flight at once while a call is retried.
        most: maximum number of tries in flight over all keys and all functions of the pool, or None.
        rate: rate limit of each key, or None.
        hedging: when to hedge, or None.
        breaking: circuit breaker of each key, or None.
        adapting: settings of an adaptive limit, or None. If there is a rate limit, the rate limit adapts. Otherwise the pool's concurrency
            limit adapts. The adaptive limit never exceeds the configured limit.
        paced: True if the tries of the call wait for the rate limit. If False, the tries do not wait, but they still count towards the rate
            limit.
        noted: True if the decisions about the call are logged in ``Call.notes``.
    """

    level: int = 5
    timeout: float | None = None
    retries: int = 0
    pause: Pause = Pause(1.0, 60.0)
    parallel_tries: int = 1
    most: int | None = None
    rate: Rate | None = None
    hedging: Hedging | None = None
    breaking: Breaking | None = None
    adapting: Adapting | None = None
    paced: bool = True
    noted: bool = False


FALL, RISE = 0.5, 1.1
"""``FALL``: factor on an adaptive limit when it falls. ``RISE``: factor on the limit when it rises; the limit rises by at least 1."""
LEAST_ROUND = 5
"""Minimum number of tries that must have ended before an adaptive limit is evaluated."""


class AimdLimit:
    """Adapts a limit between two bounds.

    Args:
        config: the bounds, and the conditions under which the limit falls.
        start: initial limit, clamped to the bounds.
        most: upper bound in addition to the upper bound in ``config``.

    Attributes:
        limit: the present limit.
        wanted: a call had to wait for the limit since its last evaluation, so that a higher limit would help.
    """

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
        """Record that a try succeeded after ``seconds``. Returns True if the limit has changed."""
        if sent_at < self._since:
            return False
        self._ok += 1
        self._seconds += seconds
        return self._evaluate(now)

    def failed(self, now: float, sent_at: float) -> bool:
        """Record that a try failed. Returns True if the limit has changed."""
        if sent_at < self._since:
            return False
        self._failed += 1
        return self._evaluate(now)

    def overloaded(self, now: float, sent_at: float) -> bool:
        """Record that a try was rejected because of overload. The limit falls at once. Returns True if the limit has changed.

        Tries started before the limit last fell are ignored.
        """
        return sent_at >= self._fell_at and self._fall(now)

    def _evaluate(self, now: float) -> bool:
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
    """Allows at most ``size`` starts in any half-open interval of ``window`` seconds.

    ``size`` and ``window`` may be changed. Starts before a change still count.
    """

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
    """A circuit breaker. It is closed, open until a time, or half-open with one probe call in flight.

    Attributes:
        config: the configuration; may be replaced at any time.
        probe: the call whose outcome decides while the breaker is half-open, or None.
        failures: failures in a row.
    """

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
        """Return whether a call may be tried. The call may become the probe, so its end must be reported by :meth:`over`."""
        if self.trusts(call):
            return True
        if self.probe is None and now >= self.open_until:
            self.probe = call
            return True
        return False

    def ok(self, call: object) -> None:
        """Record that a try succeeded.

        While the breaker is not closed, only tries of the probe count, because all other tries started before the breaker opened.
        """
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
        """Record that a call has ended.

        If the call is the probe and has neither succeeded nor failed, another call may become the probe.
        """
        if self.probe is call:
            self.probe = None
