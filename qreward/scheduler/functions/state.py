"""State of decorated functions and of their calls."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any
from weakref import WeakSet

from qreward.scheduler.functions.heap import IndexedHeap
from qreward.scheduler.functions.limits import Adapting, AimdLimit, Breaker, FunctionOptions, Hedging, SlidingWindowLimit, adapted
from qreward.scheduler.stats import Quantiles
from qreward.scheduler.task import CancelReason, TaskState

ADAPTIVE_START = 32
"""Number of tries in flight that an adaptive limit allows at first if no limit is configured."""
MEMORY = 60.0
"""Seconds for which an unused key keeps its failures, its open circuit breaker and its adaptive limit."""
HEDGES_AT_ONCE = 10.0
"""Number of hedges in the budget of a function before calls have added to it."""
ENOUGH = 20
"""Number of successful tries that are needed before a quantile of their times is used."""


@dataclass(slots=True, eq=False)
class CallFailure:
    """The outcome of a try that raised an exception."""

    error: BaseException  # the exception that the caller receives if the call is not retried
    _: KW_ONLY
    again: bool = True  # the call may be retried, and the try counts as a failure; if False, the error ends the call and does not count
    wait: float | None = None  # seconds after which the call may be retried, if the error or the user states them; NaN or less than 0 is 0
    overloaded: bool = False  # the try was rejected because of overload; it uses up a retry, but does not count for the circuit breaker
    covered: bool = False  # a default may be returned instead of this exception

    def __post_init__(self) -> None:
        if self.wait is not None and not self.wait > 0:
            self.wait = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Try:
    """One run of a function. For the engine, it is an attempt of a task."""

    task: Call
    sent_at: float
    hedge: bool
    counters: FunctionCounters  # those that counted it
    number: int = 1  # its position among the tries of the call, counted from 1
    started: bool = False  # set by the engine just before it checks ``cancel_reason`` and calls the function
    cancel_reason: CancelReason | None = None
    ended: bool = False  # its end was reported
    won: bool = False  # its result is the result of the call
    handle: Any = None  # used by the engine, for an asyncio task
    span: None = None

    @property
    def source(self) -> KeyState:
        return self.task.key_state


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One call of a function. For the engine, it is a task. Several tries of the call may be in flight at once."""

    function: Function
    key: Hashable
    options: FunctionOptions  # fixed when the call was made
    waiter: Any  # the waiter to which the engine delivers the outcome
    notes: list[tuple[float, str]] | None = None  # the decisions about the call with their times, or None if decisions are not logged
    key_state: KeyState = field(init=False)  # set on submission
    rank: float = 0.0  # sort key, smaller first: the arrival time plus some seconds per priority level
    number: int = 0
    state: TaskState = TaskState.NEW
    born: float = 0.0  # when it was submitted
    sent_at: float | None = None  # when it was first tried
    deadline: float = inf
    tried: dict[Try, None] = field(default_factory=dict)  # tries in flight, oldest first
    begun: int = 0  # tries started
    retries: int = 0  # tries that were started as retries
    hedges: int = 0
    tries: int = 0  # tries that failed
    streak: int = 0  # tries that failed since the last try that was rejected because of overload
    held: bool = False  # a timer was late once, so the hedge was put off until the outcomes that wait have been reported
    error: BaseException | None = None  # the last failure
    covered: bool = False  # see ``CallFailure``
    not_before: float = -inf  # no other try may start before this time, because the error or the user states a wait
    retry_at: float = inf  # when the next retry is due
    hedge_at: float = inf  # when the next hedge is due

    def __post_init__(self) -> None:
        if self.options.noted:
            self.notes = []

    @property
    def done(self) -> bool:
        return self.state is TaskState.DONE

    @property
    def planned(self) -> bool:
        """Whether another try is due at a certain time, or waits in the queue."""
        return self.retry_at < inf or self in self.key_state.queue

    def next_due(self) -> float:
        return min(self.deadline, self.retry_at, self.hedge_at)

    def failed(self, now: float, failure: CallFailure) -> None:
        self.error, self.covered = failure.error, failure.covered
        self.tries += 1
        self.streak = 0 if failure.overloaded else self.streak + 1
        if failure.wait is not None:
            self.not_before = now + failure.wait

    def may_retry(self) -> bool:
        """Return whether a retry may be made now, in addition to the tries in flight."""
        options = self.options
        return self.retries < options.retries and len(self.tried) < max(1, min(options.parallel_tries, 1 + self.streak))

    def note(self, now: float, text: str) -> None:
        if self.notes is not None:
            self.notes.append((now, text))


class ConcurrencyGroup:
    """Limits the tries in flight of a pool, over all keys of all functions of the pool."""

    __slots__ = ("_most", "adaptive", "functions", "inflight", "limit", "ready")

    def __init__(self) -> None:
        self.limit: float = inf
        self.adaptive: AimdLimit | None = None
        self.inflight = 0
        self.functions: WeakSet[Function] = WeakSet()
        self.ready: IndexedHeap[KeyState] = IndexedHeap()
        self._most: float = inf

    def follow(self) -> None:
        """Update the limit from the options of the functions. If the functions have different limits, the lowest limit applies."""
        options = [function.options for function in self.functions]
        self._most = min((each.most for each in options if each.most is not None), default=inf)
        adapting = [each.adapting for each in options if each.rate is None and each.adapting is not None]
        start = ADAPTIVE_START if self._most == inf else self._most
        self.adaptive = adapted(self.adaptive, min(adapting, key=_strictness, default=None), start, self._most)
        self.apply()

    def apply(self) -> None:
        self.limit = self._most if self.adaptive is None else self.adaptive.limit


def _strictness(adapting: Adapting) -> tuple[float, ...]:
    return adapting.most, adapting.least, adapting.errors, inf if adapting.seconds is None else adapting.seconds


class KeyState:
    """Holds the state of one key of a function."""

    __slots__ = (
        "adaptive", "breaker", "calls", "closed_until", "function", "inflight", "key", "queue", "rate_limit", "resting", "used_at",
    )  # fmt: skip

    def __init__(self, function: Function, key: Hashable) -> None:
        self.function = function
        self.key = key
        self.queue: IndexedHeap[Call] = IndexedHeap()
        self.calls = self.inflight = 0
        self.used_at = -inf
        self.resting = False
        self.reset()

    def reset(self) -> None:
        self.rate_limit: SlidingWindowLimit | None = None
        self.breaker: Breaker | None = None
        self.adaptive: AimdLimit | None = None
        self.closed_until = -inf
        self.follow()

    @property
    def name(self) -> str:
        return f"{self.function.name}()" + (f" for the key {self.key!r}" if self.function.keyed else "")

    def follow(self) -> None:
        options = self.function.options
        rate, breaking, limit = options.rate, options.breaking, self.rate_limit
        if rate is None:
            self.rate_limit = self.adaptive = None
        else:
            if limit is None:
                self.rate_limit = SlidingWindowLimit(rate.size, rate.window)
            else:
                limit.size, limit.window = rate.size, rate.window
            self.adaptive = adapted(self.adaptive, options.adapting, rate.size, rate.size)
            self.apply()
        if breaking is None:
            self.breaker = None
        elif self.breaker is None:
            self.breaker = Breaker(breaking)
        else:
            self.breaker.config = breaking

    def apply(self) -> None:
        if self.rate_limit is not None and self.adaptive is not None:
            self.rate_limit.size = self.adaptive.limit

    def ready_at(self, call: Call) -> float:
        """Return the earliest time at which the key allows a try of a call. If the time has passed, the try is allowed now."""
        at = self.closed_until
        return at if self.rate_limit is None or not call.options.paced else max(at, self.rate_limit.ready_at)

    @property
    def idle(self) -> bool:
        return not self.calls and not self.inflight

    def clear_at(self) -> float:
        """Return the time after which the key can be dropped without losing state that is needed; inf while the key is in use."""
        if not self.idle:
            return inf
        at = self.closed_until if self.rate_limit is None else max(self.closed_until, self.rate_limit.clear_at)
        breaker = self.breaker
        if breaker is not None and breaker.failures:
            at = max(at, self.used_at + MEMORY, breaker.open_until + MEMORY)
        return at if self.adaptive is None else max(at, self.used_at + MEMORY)


class Function:
    """Holds the state of one decorated function, whose present options may be replaced."""

    __slots__ = ("__weakref__", "_resting", "_rests", "counters", "group", "hedges_left", "keyed", "keys", "name", "options", "quantiles")

    def __init__(self, name: str, group: ConcurrencyGroup, options: FunctionOptions, *, keyed: bool) -> None:
        self.name = name
        self.group = group
        self.keyed = keyed
        self.options = options
        self.keys: dict[Hashable, KeyState] = {}
        self._rests = 0
        self.reset()
        group.functions.add(self)
        group.follow()

    def reset(self) -> None:
        """Reset all counts and learned values, and drop unused keys. Calls that wait or are in flight continue."""
        self.quantiles = Quantiles(fade_after=1000)
        self.hedges_left = HEDGES_AT_ONCE
        self.counters = FunctionCounters()
        self._resting: list[tuple[float, int, KeyState]] = []
        self.keys = {key: state for key, state in self.keys.items() if not state.idle}
        for state in self.keys.values():
            state.resting = False
            state.reset()

    def state_of(self, key: Hashable) -> KeyState:
        state = self.keys.get(key)
        if state is None:
            state = self.keys[key] = KeyState(self, key)
        return state

    def rest(self, state: KeyState) -> None:
        """Note an idle key, so that ``forget`` checks later whether the key can be dropped."""
        if self.keyed and not state.resting and state.idle:
            state.resting = True
            self._rests += 1
            heappush(self._resting, (state.clear_at(), self._rests, state))

    def forget(self, now: float, most: float = inf) -> None:
        """Drop keys whose state is not needed any more. At most ``most`` keys are checked."""
        resting = self._resting
        while resting and most > 0 and resting[0][0] <= now:
            state = heappop(resting)[2]
            most -= 1
            state.resting = False
            if state.clear_at() <= now:
                del self.keys[state.key]
            else:
                self.rest(state)  # used since

    def hedge_after(self, hedging: Hedging) -> float | None:
        """Return the seconds after which a try is hedged, or None if that is not known yet."""
        if hedging.after is not None:
            return hedging.after
        return self.quantiles.at(hedging.quantile) if self.quantiles.count >= ENOUGH else None


class FunctionCounters:
    __slots__ = ("calls", "failed", "hedges", "hedges_won", "ok", "overloaded", "refused", "retries", "timeouts", "tries")

    def __init__(self) -> None:
        self.calls = self.ok = self.failed = self.refused = self.timeouts = 0
        self.tries = self.retries = self.hedges = self.hedges_won = self.overloaded = 0
