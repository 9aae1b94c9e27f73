"""Schedules the calls of decorated functions. See ``docs/design/functions.md``. A *key* is what ``key_func`` returns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from math import inf
from operator import attrgetter
from random import Random
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from qreward.errors import CircuitOpen, RequestError, RequestTimeout
from qreward.scheduler.failure_policy import backoff
from qreward.scheduler.function_limits import AimdLimit, IndexedHeap, KeyState, adapted
from qreward.scheduler.health import HealthChange
from qreward.scheduler.outcome import Answer, Cancelled
from qreward.scheduler.queue import AGEING
from qreward.scheduler.scheduler import CANCEL, FINISH, SEND, Command
from qreward.scheduler.stats import Quantiles
from qreward.scheduler.task import CancelReason, TaskState
from qreward.settings.base import shown

FORGETS = 1000  # maximum number of unused keys that are dropped at once; to drop this many takes about a millisecond
ENOUGH = 20  # number of successful tries that are needed before a quantile of their times is used
HEDGES_AT_ONCE = 10.0  # number of hedges in the budget of a function before calls have added to it
HEDGE_LATER = 0.25  # seconds between two checks of a call that is due for a hedge but finds no free slot
LATE, SETTLE = 0.02, 0.05
"""A hedge whose timer is more than ``LATE`` seconds late is put off once by ``SETTLE`` seconds: the event loop or the interpreter was held,
so tries may have ended whose outcomes are reported next. ``LATE`` is above the accuracy of the engine's timers (1/64 s)."""
ADAPTIVE_START = 32  # number of tries in flight that an adaptive limit allows at first if no limit is configured
_BOUNDS = attrgetter("adaptive_limit_max", "adaptive_limit_min", "adaptive_error_threshold")
COUNTERS = ("calls", "ok", "failed", "refused", "timeouts", "tries", "retries", "hedges", "hedges_won", "overloaded")


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
    is_copy: bool
    cancel_reason: CancelReason | None = None
    ended: bool = False  # its end was reported
    handle: Any = None  # used by the engine, for an asyncio task
    span: None = None


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One call of a function. For the engine, it is a task. Several tries of the call may be in flight at once."""

    function: Function
    key: Hashable
    options: Any  # the settings of the function when the call was made, with the names of ``ScheduleConfig``
    waiter: Any  # the waiter to which the engine delivers the outcome
    paced: bool = True  # False: tries do not wait for rate limits and before retries, and there are no hedges
    key_state: KeyState = field(init=False)  # set on submission
    notes: list[tuple[float, str]] | None = None  # the decisions about the call with their times, or None if decisions are not logged
    order: tuple[float, int] = (0.0, 0)  # sort key, smaller first: the arrival time plus some seconds per priority level, and the number
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

    @property
    def name(self) -> str:
        """The function and the key, for errors. A key that may be an API key is left out."""
        key = f"the key {self.key!r}" if shown(self.key) == repr(self.key) else "one of its keys"
        return f"{self.function.name}()" + (f" for {key}" if self.function.keyed else "")

    @property
    def done(self) -> bool:
        return self.state is TaskState.DONE

    @property
    def planned(self) -> bool:
        """Whether another try is due at a certain time, or waits in the queue."""
        return self.retry_at < inf or self in self.key_state.queue

    def note(self, now: float, text: str, *values: object) -> None:
        if self.notes is not None:
            self.notes.append((now, text % values))


class Function:
    """Holds the state of one decorated function, whose present options may be replaced."""

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
        self.counters = SimpleNamespace(**dict.fromkeys(COUNTERS, 0))
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


class CallScheduler:
    """Schedules the calls of all functions of one pool.

    A call is tried at once if its key and the pool allow, or waits in the queue of its key. When a try ends, the call ends, or another try
    is planned. The timer of a call is set for the first of its deadline, its next retry and its next hedge. The timer of a key is set for
    the time at which its first waiting call may start.
    """

    def __init__(self, rng: Random) -> None:
        self.out: list[Command] = []
        self.health_changes: list[HealthChange] = []  # always empty; the engine reads it
        self.functions: WeakSet[Function] = WeakSet()
        self.inflight = 0  # tries in flight, over all keys of all functions
        self.limit: float = inf  # tries that may be in flight now
        self.adaptive: AimdLimit | None = None
        self.ready: IndexedHeap[KeyState] = IndexedHeap()  # keys whose first call waits only for a free slot, in the order of these calls
        self._timers: IndexedHeap[Call | KeyState] = IndexedHeap()  # calls, and keys whose first call waits for a time
        self._rng = rng
        self._numbers = 0

    def submit(self, now: float, call: Call) -> None:
        """Accept a call. It is tried at once if its limits allow."""
        function = call.function
        if function.keyed:
            function.forget(now)
        state = function.keys.get(call.key)
        if state is None:
            state = function.keys[call.key] = KeyState(function.options)
        state.calls += 1
        function.counters.calls += 1
        if function.options.hedged_request_time is not None:
            function.hedges_left += function.options.hedged_request_proportion
        self._numbers += 1
        call.key_state, call.number, call.born = state, self._numbers, now
        call.order = (now + call.options.priority * AGEING if call.paced else -inf), self._numbers
        if call.options.timeout is not None:
            call.deadline = now + call.options.timeout
        if call.options.debug:
            call.notes = []
        if state.admits(now, call) and self._may_start(now, call):
            self._start(now, call)
        else:
            self._enter(now, call)
            self._set_timer(call)
            self.tick(now)

    def withdraw(self, now: float, calls: list[Call]) -> None:
        """Drop calls that the caller has abandoned. The tries of these calls are cancelled, and no FINISH follows."""
        for call in calls:
            if not call.done:
                self._end(now, call, CancelReason.ABANDONED)
        self.tick(now)

    def event(self, now: float, attempt: Try, outcome: Answer | CallFailure | Cancelled) -> None:
        """Record the outcome of a try that has ended. Further events for the same try are ignored."""
        if attempt.ended:
            return
        attempt.ended = True
        call, function, state = attempt.task, attempt.task.function, attempt.task.key_state
        del call.tried[attempt]
        state.inflight -= 1
        state.used_at = now
        self.inflight -= 1
        if isinstance(outcome, Answer):
            seconds = now - attempt.sent_at
            function.quantiles.add(seconds)
            state.room += now < state.closed_until
            if attempt.cancel_reason is not CancelReason.OVERDUE:  # otherwise it was counted when the call timed out
                if state.failures and state.trusts(call):
                    state.close_circuit()
                if state.adaptive is not None or self.adaptive is not None:
                    self._adapt(now, call, attempt.sent_at, seconds)
            if not call.done:
                function.counters.ok += 1
                function.counters.hedges_won += attempt.is_copy
                call.note(now, "done after %.3g s", now - call.born)
                self._end(now, call, CancelReason.BEATEN)
                self.out.append((FINISH, call, outcome, None, seconds))
        elif isinstance(outcome, CallFailure):
            self._failed(now, attempt, outcome)
        elif not call.done and not call.tried and not call.planned:
            self._finish(now, call, call.error or RequestError(f"{call.name}: its try was cancelled by other code"))
        if state.queue:
            self._arrange(now, state)
        self.tick(now)

    def tick(self, now: float) -> None:
        """Do what is due, start waiting calls, and then hedge, because a waiting call goes first."""
        due = []
        while self._timers.rank() <= now:
            timed = self._timers.take()
            if isinstance(timed, KeyState):
                self._arrange(now, timed)
            else:
                due.append(timed)
        for call in due:
            if not call.done and now >= call.deadline:
                self._time_out(now, call)
            elif not call.done and now >= call.retry_at:
                self._enter(now, call)
        self._start_waiting(now)
        for call in due:
            if not call.done and now >= call.hedge_at:
                self._hedge(now, call)
            self._set_timer(call)

    def next_wake(self) -> float | None:
        """Return when ``tick`` must be called next, or None."""
        wake: float = self._timers.rank()
        return None if wake == inf else wake

    # settings

    def add(self, function: Function) -> None:
        self.functions.add(function)
        self._follow()

    def changed(self, now: float, function: Function) -> None:
        self._follow()
        for state in function.keys.values():
            state.follow(function.options)
            self._arrange(now, state)
        self.tick(now)

    def reset(self, now: float, function: Function) -> None:
        function.clear()
        self.adaptive = None
        self.changed(now, function)

    def _follow(self) -> None:
        """Update the limit from the options of the functions. If the functions have different limits, the lowest limit applies."""
        options = [function.options for function in self.functions]
        most = min((each.max_concurrency for each in options if each.max_concurrency is not None), default=inf)
        adapting = [each for each in options if each.adaptive_limit and each.limit_size is None]
        strictest = min(adapting, key=lambda each: (*_BOUNDS(each), each.adaptive_latency_threshold or inf), default=None)
        self.adaptive = adapted(self.adaptive, strictest, ADAPTIVE_START if most == inf else most, most)
        self.limit = most if self.adaptive is None else self.adaptive.limit

    # waiting

    def _may_start(self, now: float, call: Call) -> bool:
        """Return whether a try may start now without going ahead of a waiting call."""
        return self.inflight < self.limit and call.key_state.ready_at(call) <= now < self._timers.rank()

    def _enter(self, now: float, call: Call) -> None:
        """Put a call into the queue of its key for its first try or a retry, or refuse it because of the circuit breaker."""
        state, call.retry_at = call.key_state, inf
        if not state.admits(now, call):
            if call.begun:
                call.note(now, "no retry: the circuit breaker is open")
            if not call.tried:
                self._refuse(now, call)
            return
        if call.notes is not None and not self._may_start(now, call):
            seconds = state.ready_at(call) - now
            if seconds > 0:
                call.note(now, "waits for the rate limit: %.3g s, %d in line", seconds, len(state.queue))
            else:
                call.note(now, "waits for room: %d of %g in flight", self.inflight, self.limit)
        state.queue.put(call, call.order)
        self._arrange(now, state)

    def _arrange(self, now: float, state: KeyState) -> None:
        """Mark a key as ready, or set its timer. Call this when the key's first waiting call, or that call's start time, has changed."""
        first = state.queue.first()
        at = inf if first is None else state.ready_at(first)
        self.ready.put(state, inf if first is None or at > now else first.order)
        self._timers.put(state, at if at > now else inf)
        if now < at < inf and state.adaptive is not None and at > state.closed_until:
            state.adaptive.wanted = True

    def _start_waiting(self, now: float) -> None:
        """Start waiting calls in order, while there are free slots."""
        while (state := self.ready.first()) is not None:
            if self.inflight >= self.limit:
                if self.adaptive is not None:
                    self.adaptive.wanted = True
                return
            call = state.queue.take()
            if now < call.deadline:
                self._start(now, call)
            else:
                self._time_out(now, call)
            self._arrange(now, state)

    def _set_timer(self, call: Call) -> None:
        self._timers.put(call, inf if call.done else min(call.deadline, call.retry_at, call.hedge_at))

    # tries

    def _start(self, now: float, call: Call, *, hedge: bool = False) -> None:
        function, options = call.function, call.options
        counters = function.counters
        attempt = Try(call, now, hedge)
        call.tried[attempt] = None
        call.key_state.begin(now)
        self.inflight += 1
        counters.tries += 1
        if hedge:
            call.hedges += 1
            counters.hedges += 1
        elif call.begun:
            call.retries += 1
            counters.retries += 1
            call.note(now, "retry %d of %d", call.retries, options.retry_times)
            self._plan_retry(now, call)
        else:
            call.sent_at = now
        call.begun += 1
        after = options.hedged_request_time
        if after is not None and call.paced and call.hedge_at == inf and call.hedges < options.hedged_request_max_times:
            if isinstance(after, str):  # a percentile
                known = function.quantiles
                after = known.at(float(after[1:]) / 100) if known.count >= ENOUGH else inf
            call.hedge_at = now + after
        self.out.append((SEND, attempt))
        self._set_timer(call)

    def _plan_retry(self, now: float, call: Call, wait: float | None = None) -> None:
        """Plan the next retry, if its deadline and the circuit breaker allow one."""
        options, state = call.options, call.key_state
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
        if at >= call.deadline or (not state.trusts(call) and at < state.open_until):
            return
        if at > now:
            call.retry_at = at
        else:
            self._enter(now, call)

    def _unplan(self, now: float, call: Call) -> None:
        call.retry_at = inf
        if call in call.key_state.queue:
            call.key_state.queue.put(call, inf)
            self._arrange(now, call.key_state)

    def _hedge(self, now: float, call: Call) -> None:
        """Hedge a call that takes long, if a try may start now without going ahead of a waiting call."""
        late, call.hedge_at = now - call.hedge_at, inf
        if late > LATE and not call.held:
            call.held, call.hedge_at = True, now + SETTLE
        elif not call.tried or not call.key_state.trusts(call):
            return
        elif call.function.hedges_left < 1:
            call.note(now, "no hedge: the hedge budget is used up")
        elif call.key_state.queue or not self._may_start(now, call):
            call.hedge_at = now + HEDGE_LATER
        else:
            call.function.hedges_left -= 1
            call.note(now, "hedge %d: no result after %.3g s", call.hedges + 1, now - next(iter(call.tried)).sent_at)
            self._start(now, call, hedge=True)

    # outcomes

    def _failed(self, now: float, attempt: Try, raised: CallFailure) -> None:
        call, state = attempt.task, attempt.task.key_state
        if not call.done:
            call.error, call.covered = raised.error, raised.covered
            call.streak = 0 if raised.overloaded else call.streak + 1
            if raised.wait is not None:
                call.not_before = now + raised.wait
            number, seconds, kind = call.begun - len(call.tried), now - attempt.sent_at, type(raised.error).__name__
            call.note(now, "try %d failed after %.3g s: %s", number, seconds, kind)
        if raised.overloaded:  # this is no failure for the circuit breaker
            call.function.counters.overloaded += 1
            if raised.wait is not None and raised.wait < inf:  # begins or prolongs a cooldown
                state.room *= now < state.closed_until
                state.closed_until = max(state.closed_until, now + raised.wait)
            self._adapt(now, call, attempt.sent_at, None, overloaded=True)
        elif raised.again and attempt.cancel_reason is not CancelReason.OVERDUE:
            self._count_failure(now, call, attempt.sent_at)
        if call.done:
            return
        if raised.again:
            if raised.overloaded or raised.wait is not None:  # a retry that is planned already would come too early
                self._unplan(now, call)
            self._plan_retry(now, call, raised.wait)
        if not raised.again or not (call.tried or call.planned):
            self._finish(now, call, raised.error)
        self._set_timer(call)

    def _count_failure(self, now: float, call: Call, sent_at: float) -> None:
        """Count a try that failed, or whose call exceeded its timeout. If this opens the circuit breaker, the calls that wait are ended."""
        state = call.key_state
        self._adapt(now, call, sent_at, None)
        threshold = state.options.circuit_breaker_threshold
        if threshold is None:
            return
        state.failures += 1
        if not state.trusts(call) or (state.probe is None and state.failures < threshold):
            return
        state.opened_at, state.probe = now, None
        call.note(now, "the circuit breaker opens for %g s", state.options.circuit_breaker_recovery)
        waiting = [state.queue.take() for _ in range(len(state.queue))]
        self._arrange(now, state)
        for other in waiting:
            if not other.tried:
                self._refuse(now, other)

    def _adapt(self, now: float, call: Call, sent_at: float, seconds: float | None, *, overloaded: bool = False) -> None:
        """Record the end of a try in the adaptive limits of its key and of the pool: its seconds, or None if it failed."""
        for place in (call.key_state, self):
            if place.adaptive is not None:
                place.adaptive.ended(now, sent_at, seconds, overloaded=overloaded)
                place.limit = place.adaptive.limit

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
        """End a call because of the circuit breaker, with its own last error if it has one."""
        state, error = call.key_state, call.error
        if error is None:
            call.function.counters.refused += 1
            left = state.open_until - now
            then = f"it is tried again in {left:.3g} s" if left > 0 else "one call is testing it now"
            failed = f"{call.name} failed {state.failures} times in a row"
            error = CircuitOpen(f"{failed} and is not called for the time being (circuit breaker); {then}")
        self._finish(now, call, error)

    def _finish(self, now: float, call: Call, error: BaseException | None, reason: CancelReason = CancelReason.ABANDONED) -> None:
        if call.done:
            return
        call.function.counters.failed += 1
        call.note(now, "failed after %.3g s: %s", now - call.born, type(error).__name__)
        self._end(now, call, reason)
        self.out.append((FINISH, call, error, None, 0.0))

    def _end(self, now: float, call: Call, reason: CancelReason) -> None:
        state = call.key_state
        call.state = TaskState.DONE
        state.calls -= 1
        if state.probe is call:  # it has neither succeeded nor failed, so another call may become the probe
            state.probe = None
        self._timers.put(call, inf)
        self._unplan(now, call)
        for attempt in call.tried:
            attempt.cancel_reason = reason
            self.out.append((CANCEL, attempt))
