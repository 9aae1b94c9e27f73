"""Schedules the calls of decorated functions. See ``docs/design/functions.md``. A *key* is what ``key_func`` returns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from random import Random
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from qreward.errors import CircuitOpen, RequestError, RequestTimeout
from qreward.scheduler.failure_policy import backoff
from qreward.scheduler.function_limits import AimdLimit, Breaker, SlidingWindowLimit
from qreward.scheduler.health import HealthChange
from qreward.scheduler.outcome import Answer, Cancelled
from qreward.scheduler.queue import AGEING
from qreward.scheduler.scheduler import CANCEL, FINISH, SEND, Command
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

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + SWEEP:
            self._heap = list(self._entries.values())
            heapify(self._heap)


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
    wait: float | None = None  # seconds after which the call may be retried, at least 0, if the error or the user states them
    overloaded: bool = False  # the try was rejected because of overload; it uses up a retry, but does not count for the circuit breaker
    covered: bool = False  # a default may be returned instead of this exception


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
    def source(self) -> Call:
        """What the engine names in an error."""
        return self.task


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
    def name(self) -> str:
        return f"{self.function.name}()" + (f" for the key {self.key!r}" if self.function.keyed else "")

    @property
    def done(self) -> bool:
        return self.state is TaskState.DONE

    @property
    def planned(self) -> bool:
        """Whether another try is due at a certain time, or waits in the queue."""
        return self.retry_at < inf or self in self.key_state.queue

    def note(self, now: float, text: str) -> None:
        if self.notes is not None:
            self.notes.append((now, text))


class KeyState:
    """Holds the state of one key of a function."""

    __slots__ = ("adaptive", "breaker", "calls", "closed_until", "inflight", "queue", "rate_limit", "used_at")

    def __init__(self, options: Any) -> None:
        self.queue: IndexedHeap[Call] = IndexedHeap()  # calls that wait for the rate limit or for a free slot
        self.calls = self.inflight = 0
        self.used_at = -inf  # when a try last started or ended
        self.reset(options)

    def reset(self, options: Any) -> None:
        self.rate_limit: SlidingWindowLimit | None = None
        self.breaker: Breaker | None = None
        self.adaptive: AimdLimit | None = None
        self.closed_until = -inf  # end of the cooldown after an overload error that carried a wait
        self.follow(options)

    def follow(self, options: Any) -> None:
        """Use the present options of the function."""
        size, threshold = options.limit_size, options.circuit_breaker_threshold
        if size is None:
            self.rate_limit = self.adaptive = None
        else:
            self.rate_limit = limit = self.rate_limit or SlidingWindowLimit(size, options.limit_window)
            limit.size, limit.window = size, options.limit_window
            self.adaptive = adapted(self.adaptive, options if options.adaptive_limit else None, size, size)
            self.apply()
        self.breaker = None if threshold is None else self.breaker or Breaker()
        if self.breaker is not None:
            self.breaker.threshold, self.breaker.recovery = threshold, options.circuit_breaker_recovery

    def apply(self) -> None:
        """Apply the adaptive limit."""
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
        self.clear()

    def clear(self) -> None:
        """Reset all counts and learned values, and drop unused keys. Calls that wait or are in flight continue."""
        self.quantiles = Quantiles(fade_after=1000)  # of the seconds that successful tries took
        self.hedges_left = HEDGES_AT_ONCE  # hedge budget, to which each call adds
        self.counters = FunctionCounters()
        self.keys = OrderedDict((key, state) for key, state in self.keys.items() if not state.idle)
        for state in self.keys.values():
            state.reset(self.options)

    def forget(self, now: float) -> None:
        """Drop the next keys in turn whose state is not needed any more, up to the first key whose state is, and at most ``FORGETS``."""
        keys = self.keys
        for _ in range(min(FORGETS, len(keys))):
            key, state = next(iter(keys.items()))
            if state.clear_at() > now:
                keys.move_to_end(key)
                break
            del keys[key]


class FunctionCounters:
    __slots__ = ("calls", "failed", "hedges", "hedges_won", "ok", "overloaded", "refused", "retries", "timeouts", "tries")

    def __init__(self) -> None:
        self.calls = self.ok = self.failed = self.refused = self.timeouts = 0
        self.tries = self.retries = self.hedges = self.hedges_won = self.overloaded = 0


LATE, SETTLE = 0.02, 0.05
"""A hedge whose timer is more than ``LATE`` seconds late is put off once by ``SETTLE`` seconds: the event loop or the interpreter was held,
so tries may have ended whose outcomes are reported next. ``LATE`` is above the accuracy of the engine's timers (1/64 s)."""
ADAPTIVE_START = 32  # number of tries in flight that an adaptive limit allows at first if no limit is configured
HEDGE_LATER = 0.25  # seconds between two checks of a call that is due for a hedge but finds no free slot


class CallScheduler:
    """Schedules the calls of all functions of one pool."""

    def __init__(self, rng: Random) -> None:
        self.out: list[Command] = []
        self.health_changes: list[HealthChange] = []  # always empty; the engine reads it
        self.functions: WeakSet[Function] = WeakSet()
        self.inflight = 0  # tries in flight, over all keys of all functions
        self.limit: float = inf  # tries that may be in flight now
        self.adaptive: AimdLimit | None = None
        self._most: float = inf
        self.ready: IndexedHeap[KeyState] = IndexedHeap()  # keys with a call that waits only for a free slot, by its rank
        self._rng = rng
        self._timers: IndexedHeap[Call] = IndexedHeap()
        self._wakes: IndexedHeap[KeyState] = IndexedHeap()  # timers of keys
        self._numbers = 0

    # inputs

    def add(self, function: Function) -> None:
        """Schedule the calls of another function."""
        self.functions.add(function)
        self._follow()

    def submit(self, now: float, call: Call) -> None:
        """Accept a call. It is tried at once if its limits allow."""
        function = call.function
        if function.keyed:
            function.forget(now)
        self._numbers += 1
        call.number, call.born = self._numbers, now
        call.rank = now + call.options.priority * AGEING
        state = function.keys.get(call.key)
        if state is None:
            state = function.keys[call.key] = KeyState(function.options)
        call.key_state = state
        state.calls += 1
        function.counters.calls += 1
        if function.options.hedged_request_time is not None:
            function.hedges_left += function.options.hedged_request_proportion
        if call.options.timeout is not None:
            call.deadline = now + call.options.timeout
        if state.breaker is not None and not state.breaker.admits(now, call):
            self._refuse(now, call)
            return
        if self._may_start(now, call):
            self._send(now, call)
        else:
            self._place(now, call)
            self._pump(now)
        self._set_timer(call)

    def withdraw(self, now: float, calls: list[Call]) -> None:
        """Drop calls that the caller has abandoned. The tries of these calls are cancelled, and no FINISH follows."""
        for call in calls:
            if not call.done:
                self._end(now, call, CancelReason.ABANDONED)
        self._pump(now)

    def event(self, now: float, attempt: Try, outcome: Answer | CallFailure | Cancelled) -> None:
        """Record the outcome of a try that has ended. Further events for the same try are ignored."""
        if attempt.ended:
            return
        attempt.ended = True
        call = attempt.task
        state = call.key_state
        del call.tried[attempt]
        state.inflight -= 1
        state.used_at = now
        self.inflight -= 1
        if isinstance(outcome, Answer):
            self._answered(now, attempt, outcome)
        elif isinstance(outcome, CallFailure):
            self._failed(now, attempt, outcome)
        elif not call.done and not call.tried and not call.planned:
            error = call.error or RequestError(f"{call.name}: its try was cancelled by other code")
            self._finish(now, call, error)
        if state.queue:
            self._arrange(now, state)
        self._pump(now)

    def tick(self, now: float) -> None:
        due = []
        while self._timers.rank() <= now:
            due.append(self._timers.take())
        for call in due:
            if not call.done and now >= call.deadline:
                self._time_out(now, call)
        for call in due:
            if not call.done and now >= call.retry_at:
                self._retry(now, call)
        self._pump(now)
        for call in due:
            if not call.done and now >= call.hedge_at:
                if now - call.hedge_at > LATE and not call.held:
                    call.held, call.hedge_at = True, now + SETTLE
                else:
                    self._hedge(now, call)
            self._set_timer(call)

    def next_wake(self) -> float | None:
        """Return when ``tick`` must be called next, or None."""
        wake = min(self._timers.rank(), self._wakes.rank())
        return None if wake == inf else wake

    def changed(self, now: float, function: Function) -> None:
        """Apply the options of a function, which have changed."""
        self._follow()
        for state in function.keys.values():
            state.follow(function.options)
            self._arrange(now, state)
        self._pump(now)

    def reset(self, now: float, function: Function) -> None:
        """Reset all counts and learned values of a function. Calls that wait or are in flight continue."""
        function.clear()
        self.adaptive = None
        self.changed(now, function)

    def _follow(self) -> None:
        """Update the limit from the options of the functions. If the functions have different limits, the lowest limit applies."""
        options = [function.options for function in self.functions]
        self._most = min((each.max_concurrency for each in options if each.max_concurrency is not None), default=inf)
        adapting = [each for each in options if each.adaptive_limit and each.limit_size is None]
        strictest = min(adapting, key=_strictness, default=None)
        self.adaptive = adapted(self.adaptive, strictest, ADAPTIVE_START if self._most == inf else self._most, self._most)
        self.apply()

    def apply(self) -> None:
        self.limit = self._most if self.adaptive is None else self.adaptive.limit

    # waiting

    def _may_start(self, now: float, call: Call) -> bool:
        """Return whether a try may start now without going ahead of a waiting call."""
        return self.inflight < self.limit and call.key_state.ready_at(call) <= now < self._wakes.rank()

    def _place(self, now: float, call: Call) -> None:
        state = call.key_state
        if call.notes is not None and not self._may_start(now, call):
            if (ready := state.ready_at(call) - now) > 0:
                call.note(now, f"waits for the rate limit: {ready:.3g} s, {len(state.queue)} in line")
            else:
                call.note(now, f"waits for room: {self.inflight} of {self.limit:g} in flight")
        state.queue.put(call, call.rank if call.paced else -inf, call.number)
        self._arrange(now, state)

    def _unplan(self, now: float, call: Call) -> None:
        call.retry_at = inf
        if call in call.key_state.queue:
            call.key_state.queue.drop(call)
            self._arrange(now, call.key_state)

    def _arrange(self, now: float, state: KeyState) -> None:
        """Mark a key as ready, or set its timer. Call this when the key's first waiting call, or that call's start time, has changed."""
        first = state.queue.first()
        at = inf if first is None else state.ready_at(first)
        if first is not None and at <= now:
            self.ready.put(state, first.rank, first.number)
        else:
            self.ready.drop(state)
        if now < at < inf:
            self._wakes.put(state, at)
            if state.adaptive is not None and at > state.closed_until:
                state.adaptive.wanted = True
        else:
            self._wakes.drop(state)

    def _pump(self, now: float) -> None:
        """Start waiting calls in order, while there are free slots."""
        wakes = self._wakes
        while wakes.rank() <= now:
            self._arrange(now, wakes.take())
        while (state := self.ready.first()) is not None:
            if self.inflight >= self.limit:
                if self.adaptive is not None:
                    self.adaptive.wanted = True
                return
            call = state.queue.take()
            if now < call.deadline:
                self._send(now, call)
                self._set_timer(call)
            else:
                self._time_out(now, call)
            self._arrange(now, state)

    def _set_timer(self, call: Call) -> None:
        due = inf if call.done else min(call.deadline, call.retry_at, call.hedge_at)
        if due < inf:
            self._timers.put(call, due, call.number)
        else:
            self._timers.drop(call)

    # tries

    def _send(self, now: float, call: Call, *, hedge: bool = False) -> None:
        state, counters = call.key_state, call.function.counters
        attempt = Try(call, now, hedge)
        call.tried[attempt] = None
        state.inflight += 1
        state.used_at = now
        self.inflight += 1
        if state.rate_limit is not None:
            state.rate_limit.take(now)
        counters.tries += 1
        if hedge:
            call.hedges += 1
            counters.hedges += 1
        elif call.begun:
            call.retries += 1
            counters.retries += 1
            call.note(now, f"retry {call.retries} of {call.options.retry_times}")
            self._plan_retry(now, call)
        else:
            call.sent_at = now
        call.begun += 1
        options = call.options
        hedged = options.hedged_request_time is not None and call.paced
        if hedged and call.hedge_at == inf and call.hedges < options.hedged_request_max_times:
            after, known = options.hedged_request_time, call.function.quantiles
            if isinstance(after, str):  # a percentile
                after = known.at(float(after[1:]) / 100) if known.count >= ENOUGH else None
            if after is not None:
                call.hedge_at = now + after
        self.out.append((SEND, attempt))

    def _plan_retry(self, now: float, call: Call, wait: float | None = None) -> None:
        """Plan the next retry, if its deadline and the circuit breaker allow one."""
        options = call.options
        at_once = min(options.speed_up_max_multiply, 1 + call.streak)
        if call.planned or call.retries >= options.retry_times or len(call.tried) >= max(1, at_once):
            return
        if not call.paced:
            at = now
        elif wait is None:
            pause = backoff(options.retry_interval, options.retry_max_interval, call.retries + 1, self._rng)
            at = max(now + min(pause, (call.deadline - now) / 2), call.not_before)  # the backoff is at most half of the time that is left
        else:
            at = now + wait
        breaker = call.key_state.breaker
        if at >= call.deadline or (breaker is not None and not breaker.trusts(call) and at < breaker.open_until):
            return
        call.retry_at = at
        if at <= now:
            self._retry(now, call)

    def _retry(self, now: float, call: Call) -> None:
        call.retry_at = inf
        breaker = call.key_state.breaker
        if breaker is None or breaker.admits(now, call):
            self._place(now, call)
            return
        call.note(now, "no retry: the circuit breaker is open")
        if not call.tried:
            self._finish(now, call, call.error)

    def _hedge(self, now: float, call: Call) -> None:
        """Hedge a call that takes long, if a try may start now without going ahead of a waiting call."""
        call.hedge_at = inf
        function, breaker = call.function, call.key_state.breaker
        if not call.tried or (breaker is not None and not breaker.trusts(call)):
            return
        if function.hedges_left < 1:
            call.note(now, "no hedge: the hedge budget is used up")
        elif call.key_state.queue or not self._may_start(now, call):
            call.hedge_at = now + HEDGE_LATER
        else:
            function.hedges_left -= 1
            call.note(now, f"hedge {call.hedges + 1}: no result after {now - next(iter(call.tried)).sent_at:.3g} s")
            self._send(now, call, hedge=True)

    # outcomes

    def _answered(self, now: float, attempt: Try, answer: Answer) -> None:
        call, function, seconds = attempt.task, attempt.task.function, now - attempt.sent_at
        function.quantiles.add(seconds)
        if attempt.cancel_reason is not CancelReason.OVERDUE:  # otherwise it was counted when the call timed out
            state = call.key_state
            if state.breaker is not None:
                state.breaker.ok(call)
            if state.adaptive is not None or self.adaptive is not None:
                self._adapt(now, call, attempt.sent_at, seconds)
        if call.done:
            return
        function.counters.ok += 1
        function.counters.hedges_won += attempt.hedge
        call.note(now, f"done after {now - call.born:.3g} s")
        self._end(now, call, CancelReason.BEATEN)
        self.out.append((FINISH, call, answer, None, seconds))

    def _failed(self, now: float, attempt: Try, raised: CallFailure) -> None:
        call, state = attempt.task, attempt.task.key_state
        if not call.done:
            call.error, call.covered = raised.error, raised.covered
            call.streak = 0 if raised.overloaded else call.streak + 1
            if raised.wait is not None:
                call.not_before = now + raised.wait
            call.note(now, f"try {call.begun - len(call.tried)} failed after {now - attempt.sent_at:.3g} s: {type(raised.error).__name__}")
        if raised.overloaded:  # this is no failure for the circuit breaker
            call.function.counters.overloaded += 1
            if raised.wait is not None and raised.wait < inf:
                state.closed_until = max(state.closed_until, now + raised.wait)
            self._adapt(now, call, attempt.sent_at, overloaded=True)
        elif raised.again and attempt.cancel_reason is not CancelReason.OVERDUE:
            self._count_failure(now, call, attempt.sent_at)
        if call.done:
            return
        if not raised.again:
            self._finish(now, call, raised.error)
            return
        if raised.overloaded or raised.wait is not None:  # a retry that is planned already would come too early
            self._unplan(now, call)
        self._plan_retry(now, call, raised.wait)
        if not call.tried and not call.planned:
            self._finish(now, call, raised.error)
        self._set_timer(call)

    def _count_failure(self, now: float, call: Call, sent_at: float) -> None:
        """Count a try that failed, or whose call exceeded its timeout. If this opens the circuit breaker, the calls that wait are ended."""
        self._adapt(now, call, sent_at)
        state = call.key_state
        if state.breaker is None or not state.breaker.failed(now, call):
            return
        call.note(now, f"the circuit breaker opens for {state.breaker.recovery:g} s")
        waiting = [state.queue.take() for _ in range(len(state.queue))]
        self._arrange(now, state)
        for other in waiting:
            if not other.tried:
                self._refuse(now, other)

    def _adapt(self, now: float, call: Call, sent_at: float, seconds: float | None = None, *, overloaded: bool = False) -> None:
        """Record the end of a try in the adaptive limits of a call's key and of the pool, and apply the limits that change."""
        for holder in (call.key_state, self):
            limit = holder.adaptive
            if limit is not None and (limit.overloaded(now, sent_at) if overloaded else limit.ended(now, sent_at, seconds)):
                holder.apply()

    def _time_out(self, now: float, call: Call) -> None:
        call.function.counters.timeouts += 1
        if call.tried:
            self._count_failure(now, call, next(iter(call.tried)).sent_at)
            seen = "a try was under way"
        elif call.sent_at is not None:
            seen = "it waited for its next try"
        else:
            seen = "it was never tried: it waited for the rate limit, or for a free slot"
        if call.error is not None:
            seen += f"; the last try failed with {type(call.error).__name__}"
        limit = f"{call.options.timeout:g} s, waiting and retries included"
        error = RequestTimeout(f"{call.name} did not end within its timeout of {limit}; {seen}")
        error.__cause__ = call.error
        self._finish(now, call, error, CancelReason.OVERDUE)

    def _refuse(self, now: float, call: Call) -> None:
        breaker, error = call.key_state.breaker, call.error
        if error is None:
            assert breaker is not None
            call.function.counters.refused += 1
            left = breaker.open_until - now
            then = f"it is tried again in {left:.3g} s" if left > 0 else "one call is testing it now"
            error = CircuitOpen(
                f"{call.name} failed {breaker.failures} times in a row and is not called for the time being (circuit breaker); {then}"
            )
        self._finish(now, call, error)

    def _finish(self, now: float, call: Call, error: BaseException | None, reason: CancelReason = CancelReason.ABANDONED) -> None:
        if call.done:
            return
        call.function.counters.failed += 1
        call.note(now, f"failed after {now - call.born:.3g} s: {type(error).__name__}")
        self._end(now, call, reason)
        self.out.append((FINISH, call, error, None, 0.0))

    def _end(self, now: float, call: Call, reason: CancelReason) -> None:
        state = call.key_state
        call.state = TaskState.DONE
        state.calls -= 1
        self._timers.drop(call)
        self._unplan(now, call)
        if state.breaker is not None:
            state.breaker.over(call)
        for attempt in call.tried:
            attempt.cancel_reason = reason
            self.out.append((CANCEL, attempt))


def adapted(adaptive: AimdLimit | None, options: Any, start: float, most: float) -> AimdLimit | None:
    """Return an adaptive limit that follows other options; None if they are None."""
    if options is None or adaptive is None:
        return None if options is None else AimdLimit(start, options, most)
    adaptive.follow(options, most)
    return adaptive


def _strictness(options: Any) -> tuple[float, ...]:
    slow = options.adaptive_latency_threshold
    return options.adaptive_limit_max, options.adaptive_limit_min, options.adaptive_error_threshold, inf if slow is None else slow
