"""How the calls of one function are to be treated: plain numbers, made from what the user set."""

from __future__ import annotations

from typing import NamedTuple


class Pause(NamedTuple):
    """Longest wait before the first retry, and before any; see ``core.retry.backoff``."""

    base: float
    cap: float


class Rate(NamedTuple):
    """At most ``size`` tries in any ``window`` seconds, for each key."""

    size: int
    window: float


class Hedging(NamedTuple):
    """When a call that is under way is tried a second time.

    Attributes:
        after: seconds, or None for ``quantile`` of what successful tries took.
        most: such tries a call.
        share: of them for each call, over all calls.
    """

    after: float | None
    quantile: float
    most: int
    share: float


class Breaking(NamedTuple):
    """So many failures in a row open the breaker of a key for ``recovery`` seconds."""

    threshold: int
    recovery: float


class Adapting(NamedTuple):
    """Bounds of a limit that moves, and what makes it fall: the share of failures, and the mean seconds of a try or None."""

    least: int
    most: int
    errors: float
    seconds: float | None


class CallTerms(NamedTuple):
    """Everything that is decided about a call.

    Attributes:
        level: priority, 0 (most urgent) to 9.
        timeout: seconds the whole call may take.
        retries: tries beyond the first that may be made after a failure.
        pause: how long to wait before them.
        abreast: most tries under way at once while a call is being retried.
        most: tries in flight over all keys, and over all functions of the pool.
        adapting: moves the limit of the rate if there is one, else that of the pool, and never above what is set.
        paced: its tries wait for the rate; if not, they only count.
        noted: what is decided is written down.
    """

    level: int = 5
    timeout: float | None = None
    retries: int = 0
    pause: Pause = Pause(1.0, 60.0)
    abreast: int = 1
    most: int | None = None
    rate: Rate | None = None
    hedging: Hedging | None = None
    breaking: Breaking | None = None
    adapting: Adapting | None = None
    paced: bool = True
    noted: bool = False
