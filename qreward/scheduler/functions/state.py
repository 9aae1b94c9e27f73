"""State of decorated functions, of their keys and calls, and the limits of each key and pool. A *key* is what ``key_func`` returns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from qreward.scheduler.stats import Quantiles
from qreward.scheduler.task import CancelReason, TaskState

T = TypeVar("T")

SWEEP = 64  # number of empty entries that a heap may hold, in addition to one entry for each item, before all empty entries are deleted


class IndexedHeap(Generic[T]):
    """Keeps items ordered by rank, each item once. Items of equal rank are ordered by number, then in the order in which they were put."""

    __slots__ = ("_entries", "_heap", "_pushes")

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []  # rank, number, a serial number that makes the entry unique, and the item or None
        self._entries: dict[T, list[Any]] = {}
        self._pushes = 0

    def put(self, item: T, rank: float, number: int = 0) -> None:
        entry = self._entries.get(item)
        if entry is not None:
            if entry[0] == rank and entry[1] == number:
                return
            entry[3] = None
        self._pushes += 1  # so that items are never compared
        entry = self._entries[item] = [rank, number, self._pushes, item]
        heappush(self._heap, entry)
        self._sweep()

    def drop(self, item: T) -> None:
        entry = self._entries.pop(item, None)
        if entry is not None:
            entry[3] = None  # so that the removed item can be garbage collected
            self._sweep()

    def first(self) -> T | None:
        heap = self._heap
        while heap:
            item: T | None = heap[0][3]
            if item is not None:
                return item
            heappop(heap)
        return None

    def rank(self) -> float:
        if not self._heap or self.first() is None:
            return inf
        rank: float = self._heap[0][0]
        return rank

    def take(self) -> T:
        item = self.first()
        assert item is not None
        heappop(self._heap)
        del self._entries[item]
        return item

    def empty(self) -> list[T]:
        """Remove and return all items in their order."""
        return [self.take() for _ in range(len(self))]

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SWEEP:
            self._heap = list(self._entries.values())
            heapify(self._heap)


class Adapting(NamedTuple):
    """The bounds of an adaptive limit, and when it falls: share of failed tries, and mean seconds of a successful try (or None)."""

    least: int
    most: int
    errors: float
    seconds: float | None

    @classmethod
    def of(cls, options: Any) -> Adapting | None:
        least, most, errors = options.adaptive_limit_min, options.adaptive_limit_max, options.adaptive_error_threshold
        return cls(least, most, errors, options.adaptive_latency_threshold) if options.adaptive_limit else None


FALL, RISE = 0.5, 1.1
"""``FALL``: factor on an adaptive limit when it falls. ``RISE``: factor on the limit when it rises; the limit rises by at least 1."""
LEAST_ROUND = 5  # minimum number of tries that must have ended before an adaptive limit is evaluated


class AimdLimit:
    """Adapts a limit between two bounds (AIMD; Chiu and Jain, 1989), each time as many tries have ended as it allows (at least 5).

    Only tries count that started after its last change, so that the effect of a change is seen before the next change.
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
        errors, slow = self._failed / ended, self.config.seconds
        if errors > self.config.errors or (slow is not None and self._ok and self._seconds / self._ok > slow):
            return self._fall(now)
        rise = self.wanted and errors <= self.config.errors / 2
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
        if not self.trusts(call) or (self.probe is None and self.failures < self.threshold):
            return False
        self._opened_at, self.probe = now, None
        return True

    def over(self, call: object) -> None:
        """Record that a call has ended. If it is the probe, and has neither succeeded nor failed, another call may become the probe."""
        if self.probe is call:
            self.probe = None


MEMORY = 60.0  # seconds for which an unused key keeps its failures, its open circuit breaker and its adaptive limit
HEDGES_AT_ONCE = 10.0  # number of hedges in the budget of a function before calls have added to it
FORGETS = 1000  # maximum number of unused keys that are dropped at once; to drop this many takes about a millisecond
ENOUGH = 20  # number of successful tries that are needed before a quantile of their times is used


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
    cancel_reason: CancelReason | None = None
    ended: bool = False  # its end was reported
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
    options: Any  # the settings of the function when the call was made, with the names of ``ScheduleConfig``
    waiter: Any  # the waiter to which the engine delivers the outcome
    paced: bool = True  # False: tries do not wait for rate limits and before retries, and there are no hedges
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
        if self.options.debug:
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

    def note(self, now: float, text: str) -> None:
        """Note a decision about the call for the log."""
        if self.notes is not None:
            self.notes.append((now, text))


class KeyState:
    """Holds the state of one key of a function."""

    __slots__ = (
        "adaptive", "breaker", "calls", "closed_until", "function", "inflight", "key", "queue", "rate_limit", "used_at",
    )  # fmt: skip

    def __init__(self, function: Function, key: Hashable) -> None:
        self.function = function
        self.key = key
        self.queue: IndexedHeap[Call] = IndexedHeap()  # calls that wait for the rate limit or for a free slot
        self.calls = self.inflight = 0
        self.used_at = -inf  # when a try last started or ended
        self.reset()

    def reset(self) -> None:
        self.rate_limit: SlidingWindowLimit | None = None
        self.breaker: Breaker | None = None
        self.adaptive: AimdLimit | None = None
        self.closed_until = -inf  # end of the cooldown after an overload error that carried a wait
        self.follow()

    @property
    def name(self) -> str:
        return f"{self.function.name}()" + (f" for the key {self.key!r}" if self.function.keyed else "")

    def follow(self) -> None:
        options = self.function.options
        size, limit = options.limit_size, self.rate_limit
        if size is None:
            self.rate_limit = self.adaptive = None
        else:
            if limit is None:
                self.rate_limit = SlidingWindowLimit(size, options.limit_window)
            else:
                limit.size, limit.window = size, options.limit_window
            self.adaptive = adapted(self.adaptive, Adapting.of(options), size, size)
            self.apply()
        if options.circuit_breaker_threshold is None:
            self.breaker = None
        else:
            self.breaker = self.breaker or Breaker()
            self.breaker.threshold, self.breaker.recovery = options.circuit_breaker_threshold, options.circuit_breaker_recovery

    def apply(self) -> None:
        if self.rate_limit is not None and self.adaptive is not None:
            self.rate_limit.size = self.adaptive.limit

    def ready_at(self, call: Call) -> float:
        """Return the earliest time at which the key allows a try of a call. If the time has passed, the try is allowed now."""
        at = self.closed_until
        return at if self.rate_limit is None or not call.paced else max(at, self.rate_limit.ready_at)

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

    __slots__ = ("__weakref__", "counters", "hedges_left", "keyed", "keys", "name", "options", "quantiles")

    def __init__(self, name: str, options: Any) -> None:
        self.name = name
        self.options = options  # its settings now, with the names of ``ScheduleConfig``
        self.keyed = options.key_func is not None  # it may have more than one key
        self.keys: OrderedDict[Hashable, KeyState] = OrderedDict()
        self.reset()

    def reset(self) -> None:
        """Reset all counts and learned values, and drop unused keys. Calls that wait or are in flight continue."""
        self.quantiles = Quantiles(fade_after=1000)  # of the seconds that successful tries took
        self.hedges_left = HEDGES_AT_ONCE  # hedge budget, to which each call adds
        self.counters = FunctionCounters()
        self.keys = OrderedDict((key, state) for key, state in self.keys.items() if not state.idle)
        for state in self.keys.values():
            state.reset()

    def state_of(self, key: Hashable) -> KeyState:
        state = self.keys.get(key)
        if state is None:
            state = self.keys[key] = KeyState(self, key)
        return state

    def forget(self, now: float) -> None:
        """Drop the next keys in turn whose state is not needed any more, up to the first key whose state is, and at most ``FORGETS``."""
        keys = self.keys
        for _ in range(min(FORGETS, len(keys))):
            key, state = next(iter(keys.items()))
            if state.clear_at() > now:
                keys.move_to_end(key)
                break
            del keys[key]

    def hedge_after(self, after: float | str) -> float | None:
        """Return the seconds of ``hedged_request_time``, or None if a percentile is not known yet."""
        if not isinstance(after, str):
            return after
        return self.quantiles.at(float(after[1:]) / 100) if self.quantiles.count >= ENOUGH else None


class FunctionCounters:
    __slots__ = ("calls", "failed", "hedges", "hedges_won", "ok", "overloaded", "refused", "retries", "timeouts", "tries")

    def __init__(self) -> None:
        self.calls = self.ok = self.failed = self.refused = self.timeouts = 0
        self.tries = self.retries = self.hedges = self.hedges_won = self.overloaded = 0
