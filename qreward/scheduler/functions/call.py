"""One call of a decorated function.

How a try of a function can end, besides with an answer or by being stopped.

How the calls of one function are to be treated: plain numbers, made from what the user set.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from qreward.scheduler.request import Attempt, Task, TaskState

if TYPE_CHECKING:
    from qreward.scheduler.functions.state import Function, KeyState


class CallFailure:
    """It raised.

    Attributes:
        error: what the caller gets if this is the last word.
        again: it may be tried again, and counts as a failure of the function; if not, the error is none of ours.
        wait: seconds after which it may be, if the error or the user says so; what is negative or no number is 0.
        overloaded: it was turned away because there were too many: costs a retry, but says nothing of health.
        covered: it is one of the exceptions that a default may be returned for.
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
    """A task that is a call of a function. Several tries may be under way at once.

    Attributes:
        function, key, lane: what is called, and under which key; it has a lane once it was submitted.
        terms: how it is treated, whatever is set meanwhile.
        rank: smaller goes first: the time it came, later by some seconds a level.
        tried: tries that are under way, oldest first.
        begun: how often it was tried.
        retries, hedges: tries beyond the first, by why they were made.
        tries: tries that failed, ``streak`` of them since one was turned away.
        error: the last failure, and whether it is ``covered``; see ``CallFailure``.
        not_before: the time before which the function, or the user, wants no other try.
        retry_at, hedge_at: when the next of either is due; inf for none.
        notes: what was decided, and when, if anybody wants to know.
    """

    __slots__ = (
        "begun", "covered", "error", "function", "hedge_at", "hedges", "key", "lane", "not_before", "notes", "rank", "retries", "retry_at",
        "streak", "terms", "tried",
    )  # fmt: skip

    lane: KeyState

    def __init__(self, function: Function, key: Hashable, terms: CallOptions, sink: Any) -> None:
        super().__init__(None, cast("Any", None), terms.level, terms.timeout, sink, 0)  # it has a lane, and no pool
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
        """It has ended, whatever may still be under way for it."""
        return self.state is TaskState.DONE

    @property
    def planned(self) -> bool:
        """It will be tried again: at a time, or when its turn comes."""
        return self.retry_at < inf or self in self.lane.line

    def next_due(self) -> float:
        """The next time at which something about it is due."""
        return min(self.deadline, self.retry_at, self.hedge_at)

    def failed(self, now: float, raised: CallFailure) -> None:
        """Remember how a try failed."""
        self.error, self.covered = raised.error, raised.covered
        self.tries += 1
        self.streak = 0 if raised.overloaded else self.streak + 1
        if raised.wait is not None:
            self.not_before = now + raised.wait

    def may_retry(self) -> bool:
        """One more try may be made, and beside those under way: more of them the more have failed, but for overload."""
        terms = self.terms
        return self.retries < terms.retries and len(self.tried) < max(1, min(terms.abreast, 1 + self.streak))

    def note(self, now: float, text: str) -> None:
        """Write down what was decided."""
        if self.notes is not None:
            self.notes.append((now, text))


class Pause(NamedTuple):
    """Longest wait before the first retry, and before any; see ``scheduler.failure_policy.backoff``."""

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


class CallOptions(NamedTuple):
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
