"""The scheduler of function calls."""

from __future__ import annotations

from math import inf
from random import Random
from weakref import WeakSet

from qreward.errors import CircuitOpen, RequestError, RequestTimeout
from qreward.scheduler.failure_policy import backoff
from qreward.scheduler.functions.state import Adapting, AimdLimit, Call, CallFailure, Function, IndexedHeap, KeyState, Try, adapted
from qreward.scheduler.health import HealthChange
from qreward.scheduler.outcome import Answer, Cancelled
from qreward.scheduler.queue import AGEING
from qreward.scheduler.scheduler import CANCEL, FINISH, SEND, Command
from qreward.scheduler.task import CancelReason, TaskState

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
        state = call.key_state = function.state_of(call.key)
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
            error = call.error or RequestError(f"{state.name}: its try was cancelled by other code")
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
            state.follow()
            self._arrange(now, state)
        self._pump(now)

    def reset(self, now: float, function: Function) -> None:
        """Reset all counts and learned values of a function. Calls that wait or are in flight continue."""
        function.reset()
        self.adaptive = None
        self.changed(now, function)

    def _follow(self) -> None:
        """Update the limit from the options of the functions. If the functions have different limits, the lowest limit applies."""
        options = [function.options for function in self.functions]
        self._most = min((each.max_concurrency for each in options if each.max_concurrency is not None), default=inf)
        adapting = [terms for each in options if each.limit_size is None and (terms := Adapting.of(each)) is not None]
        strictest = min(adapting, key=lambda its: (its.most, its.least, its.errors, its.seconds or inf), default=None)
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
        due = inf if call.done else call.next_due()
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
            after = call.function.hedge_after(options.hedged_request_time)
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
        self.out.append((FINISH, call, answer, call.key_state, seconds))

    def _failed(self, now: float, attempt: Try, raised: CallFailure) -> None:
        call, state = attempt.task, attempt.task.key_state
        if not call.done:
            call.error, call.covered = raised.error, raised.covered
            call.tries += 1
            call.streak = 0 if raised.overloaded else call.streak + 1
            if raised.wait is not None:
                call.not_before = now + raised.wait
            call.note(now, f"try {call.tries} failed after {now - attempt.sent_at:.3g} s: {type(raised.error).__name__}")
        if raised.overloaded:  # this is no failure for the circuit breaker
            call.function.counters.overloaded += 1
            if raised.wait is not None and raised.wait < inf:
                state.closed_until = max(state.closed_until, now + raised.wait)
            self._adapt(now, call, attempt.sent_at, overloaded=True)
        elif raised.again and attempt.cancel_reason is not CancelReason.OVERDUE and self._count_failure(now, call, attempt.sent_at):
            self._empty(now, state)
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

    def _count_failure(self, now: float, call: Call, sent_at: float) -> bool:
        """Count a try that failed, or whose call exceeded its timeout. Returns True if this failure opens the circuit breaker."""
        self._adapt(now, call, sent_at)
        breaker = call.key_state.breaker
        if breaker is None or not breaker.failed(now, call):
            return False
        call.note(now, f"the circuit breaker opens for {breaker.recovery:g} s")
        return True

    def _adapt(self, now: float, call: Call, sent_at: float, seconds: float | None = None, *, overloaded: bool = False) -> None:
        """Record the end of a try in the adaptive limits of a call's key and of the pool, and apply the limits that change."""
        for holder in (call.key_state, self):
            limit = holder.adaptive
            if limit is not None and (limit.overloaded(now, sent_at) if overloaded else limit.ended(now, sent_at, seconds)):
                holder.apply()

    def _time_out(self, now: float, call: Call) -> None:
        call.function.counters.timeouts += 1
        opened = bool(call.tried) and self._count_failure(now, call, next(iter(call.tried)).sent_at)
        if call.tried:
            seen = "a try was under way"
        elif call.sent_at is not None:
            seen = "it waited for its next try"
        else:
            seen = "it was never tried: it waited for the rate limit, or for a free slot"
        if call.error is not None:
            seen += f"; the last try failed with {type(call.error).__name__}"
        limit = f"{call.options.timeout:g} s, waiting and retries included"
        error = RequestTimeout(f"{call.key_state.name} did not end within its timeout of {limit}; {seen}")
        error.__cause__ = call.error
        self._finish(now, call, error, CancelReason.OVERDUE)
        if opened:
            self._empty(now, call.key_state)

    def _empty(self, now: float, state: KeyState) -> None:
        """End the waiting calls of a key whose circuit breaker has opened, except calls with a try in flight."""
        calls = state.queue.empty()
        self._arrange(now, state)
        for call in calls:
            if not call.tried:
                self._refuse(now, call)

    def _refuse(self, now: float, call: Call) -> None:
        state, breaker, error = call.key_state, call.key_state.breaker, call.error
        if error is None:
            assert breaker is not None
            call.function.counters.refused += 1
            left = breaker.open_until - now
            then = f"it is tried again in {left:.3g} s" if left > 0 else "one call is testing it now"
            error = CircuitOpen(
                f"{state.name} failed {breaker.failures} times in a row and is not called for the time being (circuit breaker); {then}"
            )
        self._finish(now, call, error)

    def _finish(self, now: float, call: Call, error: BaseException | None, reason: CancelReason = CancelReason.ABANDONED) -> None:
        if call.done:
            return
        call.function.counters.failed += 1
        call.note(now, f"failed after {now - call.born:.3g} s: {type(error).__name__}")
        self._end(now, call, reason)
        self.out.append((FINISH, call, error, call.key_state, 0.0))

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
