"""The scheduler of function calls: decides when a call is tried, retried, hedged or ended, with which error, and why it waits.

It is pure: each input carries the time ``now``, and the commands that follow from it are appended to ``out``.

Rules that hold between any two inputs:
1. work conservation: no call waits while its key may start a try and its group has a free slot;
2. no key starts more tries in any window than its rate limit allows, and no group has more tries in flight than its limit;
3. every submitted call gets exactly one FINISH, unless it is withdrawn;
4. every SEND is followed by exactly one event.

A cancelled try stays in flight until it has ended, because a thread cannot be stopped.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING, cast

from qreward.errors import CircuitOpen, RequestError, RequestTimeout
from qreward.scheduler.failure_policy import backoff
from qreward.scheduler.functions.call import Call, CallFailure
from qreward.scheduler.functions.state import ConcurrencyGroup, Function, KeyState
from qreward.scheduler.health import HealthChange
from qreward.scheduler.heap import IndexedHeap
from qreward.scheduler.outcome import Answer, Cancelled
from qreward.scheduler.queue import AGEING
from qreward.scheduler.scheduler import CANCEL, FINISH, SEND, Command
from qreward.scheduler.state import Attempt, CancelReason, TaskState
from qreward.scheduler.timer_wheel import TimerWheel

if TYPE_CHECKING:
    from qreward.scheduler.state import Source


def learn(now: float, attempt: Attempt, call: Call, outcome: Answer | CallFailure) -> bool:
    """Update the limits and the circuit breaker by the outcome of a try, even if its call has ended. True if the breaker has opened now.

    Overload does not count against health. A try whose call has timed out was counted at that time.
    """
    counted = attempt.cancel_reason is CancelReason.OVERDUE
    if isinstance(outcome, Answer):
        seconds = now - attempt.sent_at
        call.function.quantiles.add(seconds)
        if not counted:
            _praise(now, call, attempt.sent_at, seconds)
    elif outcome.overloaded:
        _turned_away(now, call, attempt.sent_at, outcome.wait)
    elif outcome.again and not counted:
        return blame(now, call, attempt.sent_at)
    return False


def blame(now: float, call: Call, sent_at: float) -> bool:
    """Count a failed try, or one that exceeded its call's timeout. True if the breaker has opened now."""
    lane, group = call.lane, call.function.group
    if lane.adaptive is not None and lane.adaptive.failed(now, sent_at):
        lane.settle()
    if group.adaptive is not None and group.adaptive.failed(now, sent_at):
        group.settle()
    if lane.breaker is None or not lane.breaker.failed(now, call):
        return False
    call.note(now, f"the circuit breaker opens for {lane.breaker.terms.recovery:g} s")
    return True


def _praise(now: float, call: Call, sent_at: float, seconds: float) -> None:
    lane, group = call.lane, call.function.group
    if lane.breaker is not None:
        lane.breaker.ok(call)
    if lane.adaptive is not None and lane.adaptive.ok(now, sent_at, seconds):
        lane.settle()
    if group.adaptive is not None and group.adaptive.ok(now, sent_at, seconds):
        group.settle()


def _turned_away(now: float, call: Call, sent_at: float, wait: float | None) -> None:
    lane, group = call.lane, call.function.group
    call.function.tally.overloaded += 1
    if wait is not None and wait < inf:
        lane.closed_until = max(lane.closed_until, now + wait)
    if lane.adaptive is not None and lane.adaptive.overloaded(now, sent_at):
        lane.settle()
    if group.adaptive is not None and group.adaptive.overloaded(now, sent_at):
        group.settle()


def next_try(now: float, call: Call, rng: Random, told: float | None = None) -> float:
    """Return when the next retry of a call may be made, if the number of retries allows one; inf if never.

    Args:
        now: seconds.
        call: a call with a failed try.
        rng: for the jitter.
        told: seconds to wait as the last failure or the user says, used exactly; None for the backoff.
    """
    if told is None:
        pause = backoff(call.terms.pause, call.retries + 1, rng)
        at = max(now + min(pause, (call.deadline - now) / 2), call.not_before)  # an early retry is better than none
    else:
        at = now + told
    breaker = call.lane.breaker
    closed = breaker is not None and not breaker.trusts(call) and at < breaker.open_until
    return inf if at >= call.deadline or closed else at


def timed_out(call: Call) -> RequestTimeout:
    """Return the error of a call whose timeout has passed."""
    if call.tried:
        seen = "a try was under way"
    elif call.sent_at is not None:
        seen = "it waited for its next try"
    else:
        seen = "it was never tried: it waited for the rate limit, or for a free slot"
    if call.error is not None:
        seen += f"; the last try failed with {type(call.error).__name__}"
    error = RequestTimeout(f"{call.lane.name} did not end within its timeout of {call.timeout:g} s, waiting and retries included; {seen}")
    error.__cause__ = call.error
    return error


def open_circuit(now: float, lane: KeyState) -> CircuitOpen:
    """Return the error of a call that the circuit breaker rejects."""
    breaker = lane.breaker
    assert breaker is not None
    left = breaker.open_until - now
    then = f"it is tried again in {left:.3g} s" if left > 0 else "one call is testing it now"
    return CircuitOpen(
        f"{lane.name} failed {breaker.failures} times in a row and is not called for the time being (circuit breaker); {then}"
    )


def stopped(call: Call) -> BaseException:
    """Return the error of a call whose last try was cancelled by other code."""
    return call.error or RequestError(f"{call.lane.name}: its try was cancelled by other code")


def why_waiting(now: float, call: Call) -> str:
    """Describe why a call waits."""
    lane = call.lane
    ready = lane.ready_at(call) - now
    if ready > 0:
        return f"waits for the rate limit: {ready:.3g} s, {len(lane.line)} in line"
    group = call.function.group
    return f"waits for room: {group.inflight} of {group.limit:g} in flight"


HEDGE_LATER = 0.25
"""Seconds after which a hedge is tried again for which there was no free slot."""
FORGETS = 1000
"""Keys that a submission checks at most for dropping, which delays it by about a millisecond."""


class CallScheduler:
    """The scheduler of the functions of one pool.

    Args:
        rng: the only source of randomness.

    Attributes:
        out: the commands of the last input.
        health_changes: always empty; functions have no endpoint health.
        group: the concurrency limit that the functions share.
    """

    def __init__(self, rng: Random) -> None:
        self.out: list[Command] = []
        self.health_changes: list[HealthChange] = []  # always empty; the engine reads it
        self.group = ConcurrencyGroup()
        self._rng = rng
        self._wheel = TimerWheel()  # timers of calls
        self._wakes: IndexedHeap[KeyState] = IndexedHeap()  # timers of keys, exact: 1/64 s is a large part of a short window
        self._numbers = 0

    # inputs

    def submit(self, now: float, call: Call) -> None:
        """Accept a call. It is tried at once if its limits allow."""
        function = call.function
        function.forget(now, FORGETS)
        self._numbers += 1
        call.number, call.born = self._numbers, now
        call.rank = now + call.level * AGEING
        lane = call.lane = function.lane(call.key)
        lane.calls += 1
        function.tally.calls += 1
        function.earn_hedge()
        if call.timeout is not None:
            call.deadline = now + call.timeout
        if lane.breaker is not None and not lane.breaker.admits(now, call):
            self._refuse(now, call)
            return
        if self._may_start(now, call):
            self._send(now, call)
        else:
            self._place(now, call)
            self._pump(now)
        self._set_timer(call)

    def withdraw(self, now: float, calls: list[Call]) -> None:
        """The caller has abandoned these calls: their tries are cancelled, and no FINISH follows."""
        for call in calls:
            if not call.done:
                self._end(now, call, CancelReason.ABANDONED)
        self._pump(now)

    def event(self, now: float, attempt: Attempt, outcome: Answer | CallFailure | Cancelled) -> None:
        """A try ended with this outcome. Further events for the same try are ignored."""
        if attempt.ended:
            return
        attempt.ended = True
        call = cast("Call", attempt.task)
        lane = call.lane
        del call.tried[attempt]
        lane.inflight -= 1
        lane.used_at = now
        self.group.inflight -= 1
        if isinstance(outcome, Answer):
            learn(now, attempt, call, outcome)
            if not call.done:
                self._answered(now, attempt, call, outcome)
        elif isinstance(outcome, CallFailure):
            self._failed(now, attempt, call, outcome)
        elif not call.done and not call.tried and not call.planned:
            self._finish(now, call, stopped(call))  # not cancelled by this scheduler
        if lane.line:
            self._arrange(now, lane)
        self._pump(now)
        lane.function.rest(lane)

    def tick(self, now: float) -> None:
        """Run the timers that are due."""
        due = cast("list[Call]", self._wheel.pop_due(now))
        for call in due:
            if not call.done and now >= call.deadline:
                self._time_out(now, call)
        for call in due:
            if not call.done and now >= call.retry_at:
                self._retry(now, call)
        self._pump(now)
        for call in due:
            if not call.done and now >= call.hedge_at:
                self._hedge(now, call)
            self._set_timer(call)

    def next_wake(self) -> float | None:
        """Return when ``tick`` must be called next, or None."""
        due, wake = self._wheel.next_wake(), self._wakes.rank()
        if wake == inf:
            return due
        return wake if due is None else min(due, wake)

    def changed(self, now: float, function: Function) -> None:
        """The options of a function have changed."""
        self.group.follow()
        for lane in function.lanes.values():
            lane.follow()
            self._arrange(now, lane)
        self._pump(now)

    def reset(self, now: float, function: Function) -> None:
        """Reset all counts and learned values of a function. Calls that wait or are in flight continue."""
        function.start_anew()
        self.group.adaptive = None
        self.changed(now, function)

    # waiting

    def _may_start(self, now: float, call: Call) -> bool:
        """Return whether a try may start now without going ahead of a waiting call.

        A waiting call would have started already if it could, unless a tick is overdue.
        """
        return self.group.inflight < self.group.limit and call.lane.ready_at(call) <= now < self._wakes.rank()

    def _place(self, now: float, call: Call) -> None:
        """Queue a call."""
        call.state = TaskState.QUEUED
        if call.notes is not None and not self._may_start(now, call):
            call.note(now, why_waiting(now, call))
        call.lane.line.put(call, call.rank if call.terms.paced else -inf, call.number)
        self._arrange(now, call.lane)

    def _unplan(self, now: float, call: Call) -> None:
        """Cancel the planned retry of a call."""
        call.retry_at = inf
        if call in call.lane.line:
            call.lane.line.drop(call)
            self._arrange(now, call.lane)

    def _arrange(self, now: float, lane: KeyState) -> None:
        """Register a key as ready, or set its timer. Call it whenever its first call or the time of that call has changed."""
        first = lane.line.first()
        at = inf if first is None else lane.ready_at(first)
        if first is not None and at <= now:
            self.group.ready.put(lane, first.rank, first.number)
        else:
            self.group.ready.drop(lane)
        if now < at < inf:
            self._wakes.put(lane, at)
            if lane.adaptive is not None and at > lane.closed_until:
                lane.adaptive.wanted = True
        else:
            self._wakes.drop(lane)

    def _pump(self, now: float) -> None:
        """Start waiting calls in order, while there are free slots."""
        group, wakes = self.group, self._wakes
        while wakes.rank() <= now:
            self._arrange(now, wakes.take())
        while (lane := group.ready.first()) is not None:
            if group.inflight >= group.limit:
                if group.adaptive is not None:
                    group.adaptive.wanted = True
                return
            call = lane.line.take()
            if now < call.deadline:
                self._send(now, call)
                self._set_timer(call)
            else:
                self._time_out(now, call)
            self._arrange(now, lane)

    def _set_timer(self, call: Call) -> None:
        if call.done:
            return
        due = call.next_due()
        if due < inf:
            self._wheel.move(call, due)
        else:
            self._wheel.remove(call)

    # tries

    def _send(self, now: float, call: Call, *, hedge: bool = False) -> None:
        lane, tally = call.lane, call.function.tally
        attempt = Attempt(call, cast("Source", lane), now)
        attempt.hedge = hedge
        call.state = TaskState.SENT
        call.tried[attempt] = None
        lane.inflight += 1
        lane.used_at = now
        self.group.inflight += 1
        if lane.ration is not None:
            lane.ration.take(now)
        tally.tries += 1
        if hedge:
            call.hedges += 1
            tally.hedges += 1
        elif call.begun:
            call.retries += 1
            tally.retries += 1
            call.note(now, f"retry {call.retries} of {call.terms.retries}")
            self._plan_retry(now, call)
        else:
            call.sent_at = now
        call.begun += 1
        if call.terms.hedging is not None:
            self._plan_hedge(now, call)
        self.out.append((SEND, attempt))

    def _plan_retry(self, now: float, call: Call, told: float | None = None) -> None:
        """Plan a retry, if one is allowed and none is planned."""
        if not call.planned and call.may_retry():
            call.retry_at = next_try(now, call, self._rng, told)
            if call.retry_at <= now:
                self._retry(now, call)

    def _retry(self, now: float, call: Call) -> None:
        call.retry_at = inf
        breaker = call.lane.breaker
        if breaker is None or breaker.admits(now, call):
            self._place(now, call)
            return
        call.note(now, "no retry: the circuit breaker is open")
        if not call.tried:
            self._finish(now, call, call.error)

    def _plan_hedge(self, now: float, call: Call) -> None:
        hedging = call.terms.hedging
        if hedging is not None and call.hedge_at == inf and call.hedges < hedging.most:
            after = call.function.hedge_after(hedging)
            if after is not None:
                call.hedge_at = now + after

    def _hedge(self, now: float, call: Call) -> None:
        """Hedge a call that takes long, if a try may start now without going ahead of a waiting call."""
        call.hedge_at = inf
        function, breaker = call.function, call.lane.breaker
        if not call.tried or (breaker is not None and not breaker.trusts(call)):
            return
        if function.hedges_left < 1:
            call.note(now, "no hedge: as many were made as may be")
        elif call.lane.line or not self._may_start(now, call):
            call.hedge_at = now + HEDGE_LATER
        else:
            function.hedges_left -= 1
            call.note(now, f"hedge {call.hedges + 1}: no result after {now - next(iter(call.tried)).sent_at:.3g} s")
            self._send(now, call, hedge=True)

    # outcomes

    def _answered(self, now: float, attempt: Attempt, call: Call, answer: Answer) -> None:
        tally = call.function.tally
        tally.ok += 1
        tally.hedges_won += attempt.hedge
        attempt.won = True
        call.note(now, f"done after {now - call.born:.3g} s")
        self._end(now, call, CancelReason.BEATEN)
        self.out.append((FINISH, call, answer, call.lane, now - attempt.sent_at))

    def _failed(self, now: float, attempt: Attempt, call: Call, raised: CallFailure) -> None:
        if not call.done:
            call.failed(now, raised)
            call.note(now, f"try {call.tries} failed after {now - attempt.sent_at:.3g} s: {type(raised.error).__name__}")
        if learn(now, attempt, call, raised):
            self._empty(now, call.lane)
        if call.done:
            return
        if not raised.again:
            self._finish(now, call, raised.error)
            return
        if raised.overloaded or raised.wait is not None:  # a planned retry would be too early, or one too many
            self._unplan(now, call)
        self._plan_retry(now, call, raised.wait)
        if not call.tried and not call.planned:
            self._finish(now, call, raised.error)
        self._set_timer(call)

    def _time_out(self, now: float, call: Call) -> None:
        call.function.tally.timeouts += 1
        opened = bool(call.tried) and blame(now, call, next(iter(call.tried)).sent_at)
        self._finish(now, call, timed_out(call), CancelReason.OVERDUE)
        if opened:
            self._empty(now, call.lane)

    def _empty(self, now: float, lane: KeyState) -> None:
        """The breaker has opened: end the waiting calls of a key, except those with another try in flight."""
        calls = lane.line.empty()
        self._arrange(now, lane)
        for call in calls:
            if not call.tried:
                self._refuse(now, call)

    def _refuse(self, now: float, call: Call) -> None:
        call.function.tally.refused += call.error is None
        self._finish(now, call, call.error or open_circuit(now, call.lane))

    def _finish(self, now: float, call: Call, error: BaseException | None, why: CancelReason = CancelReason.ABANDONED) -> None:
        if call.done:
            return
        call.function.tally.failed += 1
        call.note(now, f"failed after {now - call.born:.3g} s: {type(error).__name__}")
        self._end(now, call, why)
        self.out.append((FINISH, call, error, call.lane, 0.0))

    def _end(self, now: float, call: Call, why: CancelReason) -> None:
        lane = call.lane
        call.state = TaskState.DONE
        lane.calls -= 1
        self._wheel.remove(call)
        self._unplan(now, call)
        if lane.breaker is not None:
            lane.breaker.over(call)
        for attempt in call.tried:
            attempt.cancel_reason = why
            self.out.append((CANCEL, attempt))
        lane.function.rest(lane)
