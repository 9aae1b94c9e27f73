"""A call of a decorated function, its options, and how a try of it can fail.

The options are plain numbers, compiled from the user's settings.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from qreward.scheduler.state import Attempt, Task, TaskState

if TYPE_CHECKING:
    from qreward.scheduler.functions.state import Function, KeyState


class CallFailure:
    """A try that raised an exception.

    Attributes:
        error: the exception that the caller receives if the call is not retried.
        again: the call may be retried, and the try counts as a failure of the function. If False, the error is passed on unchanged and not
            counted.
        wait: seconds after which the call may be retried, if the error or the user says so; a negative value or NaN becomes 0.
        overloaded: the try was rejected because of overload. It costs a retry, but does not count against health.
        covered: the exception is one for which a default may be returned.
    """

    __slots__ = ("again", "covered", "error", "overloaded", "wait")

    def __init__(
        self, error: BaseException, *, again: bool = True, wait: float | None = None, overloaded: bool = False, covered: bool = False
    ) -> None:
        self.error = error
        self.covered = covered
        self.again = again
        self.wait = wait if wait is None or wait > 0 else 0.0
        self.overloaded = overloaded


class Call(Task):
    """A task that is a call of a function. Several tries of it may be in flight at once.

    Attributes:
        function, key, lane: the function, the key of the call, and the state of that key, which is set on submission.
        terms: its options, fixed when the call was made.
        rank: position in the order of calls, smaller first: arrival time plus some seconds per priority level.
        tried: tries in flight, oldest first.
        begun: number of tries started.
        retries, hedges: tries beyond the first, by reason.
        tries: tries that failed. ``streak`` counts those since one was rejected because of overload.
        error, covered: the last failure; see ``CallFailure``.
        not_before: time before which there must be no other try, as the error or the user says.
        retry_at, hedge_at: when the next retry or hedge is due; inf for none.
        notes: log of the decisions about it with their times, or None if not requested.
    """

    __slots__ = (
        "begun", "covered", "error", "function", "hedge_at", "hedges", "key", "lane", "not_before", "notes", "rank", "retries", "retry_at",
        "streak", "terms", "tried",
    )  # fmt: skip

    lane: KeyState

    def __init__(self, function: Function, key: Hashable, terms: CallOptions, sink: Any) -> None:
        super().__init__(None, cast("Any", None), terms.level, terms.timeout, sink, 0)  # it has a key's state instead of a pool
        self.function = function
        self.key = key
        self.terms = terms
        self.rank = 0.0
        self.tried: dict[Attempt, None] = {}
        self.begun = self.retries = self.hedges = self.streak = 0
        self.error: BaseException | None = None
        self.covered = False
        self.not_before = -inf
        self.retry_at = self.hedge_at = inf
        self.notes: list[tuple[float, str]] | None = [] if terms.noted else None

    @property
    def done(self) -> bool:
        """It has ended, even if tries are still in flight."""
        return self.state is TaskState.DONE

    @property
    def planned(self) -> bool:
        """Another try is due at a time, or waits in the queue."""
        return self.retry_at < inf or self in self.lane.line

    def next_due(self) -> float:
        """Return the next time at which its deadline, retry or hedge is due."""
        return min(self.deadline, self.retry_at, self.hedge_at)

    def failed(self, now: float, raised: CallFailure) -> None:
        """Record a failed try."""
        self.error, self.covered = raised.error, raised.covered
        self.tries += 1
        self.streak = 0 if raised.overloaded else self.streak + 1
        if raised.wait is not None:
            self.not_before = now + raised.wait

    def may_retry(self) -> bool:
        """Return whether a retry may be made now, besides the tries in flight. Each failure other than overload allows one more at once."""
        terms = self.terms
        return self.retries < terms.retries and len(self.tried) < max(1, min(terms.parallel_tries, 1 + self.streak))

    def note(self, now: float, text: str) -> None:
        """Log a decision, if logging was requested."""
        if self.notes is not None:
            self.notes.append((now, text))


class Pause(NamedTuple):
    """Longest wait in seconds before the first retry, and before any; see ``scheduler.failure_policy.backoff``."""

    base: float
    cap: float


class Rate(NamedTuple):
    """At most ``size`` tries in any ``window`` seconds, for each key."""

    size: int
    window: float


class Hedging(NamedTuple):
    """When a call with a try in flight is tried a second time.

    Attributes:
        after: seconds, or None for the ``quantile`` of the time of successful tries.
        most: hedges per call.
        share: hedges that each call adds to the budget of all calls.
    """

    after: float | None
    quantile: float
    most: int
    share: float


class Breaking(NamedTuple):
    """``threshold`` failures in a row open the circuit breaker of a key for ``recovery`` seconds."""

    threshold: int
    recovery: float


class Adapting(NamedTuple):
    """Bounds of an adaptive limit, and the conditions under which it falls: a share of failures, and the mean seconds of a try or None."""

    least: int
    most: int
    errors: float
    seconds: float | None


class CallOptions(NamedTuple):
    """Options of a call.

    Attributes:
        level: priority, 0 (most urgent) to 9.
        timeout: seconds the whole call may take, or None.
        retries: maximum number of retries after failures.
        pause: backoff before retries.
        parallel_tries: maximum tries in flight at once while a call is retried.
        most: maximum tries in flight over all keys and all functions of the pool, or None.
        rate: rate limit of each key, or None.
        hedging: when to hedge, or None.
        breaking: circuit breaker of each key, or None.
        adapting: adapts the rate limit if there is one, else the pool's concurrency limit; never above the configured limit.
        paced: its tries wait for the rate limit; if False, they are only counted.
        noted: decisions are logged in ``Call.notes``.
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
