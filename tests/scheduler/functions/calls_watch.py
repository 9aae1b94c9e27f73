"""What must hold in a scheduler of calls after every input, checked from the outside: from its inputs, commands and public state.

Bookkeeping here is independent of the scheduler's own, so that the two can disagree. Knows nothing of what functions do.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from math import inf
from typing import Any

from qreward.errors import CircuitOpen, RequestTimeout
from qreward.scheduler.function_limits import SWEEP, IndexedHeap, KeyState
from qreward.scheduler.functions import HEDGES_AT_ONCE, Call, CallFailure, CallScheduler, Function
from qreward.scheduler.outcome import Answer
from qreward.scheduler.scheduler import CANCEL, FINISH, SEND, Command
from qreward.scheduler.task import Attempt, CancelReason

ROUNDING = 1e-9


class Watch:
    """Shadow of one scheduler. Call ``after`` when an input has returned."""

    def __init__(self, scheduler: CallScheduler) -> None:
        self.scheduler = scheduler
        self.functions: list[Function] = []
        self.open: dict[Call, None] = {}  # submitted, and neither finished nor withdrawn
        self.live: dict[Attempt, None] = {}  # sent, and no end reported
        self.sends: list[tuple[float, Attempt]] = []
        self.cancels: dict[Attempt, None] = {}
        self.finished: dict[Call, Any] = {}
        self.finished_at: dict[Call, float] = {}
        self.withdrawn: dict[Call, None] = {}
        self.trace: list[tuple[Any, ...]] = []
        self.inflight: Counter[tuple[Function, Any]] = Counter()
        self._starts: dict[tuple[Function, Any], deque[float]] = {}
        self._closed_until: dict[tuple[Function, Any], float] = {}
        self._room: Counter[tuple[Function, Any]] = Counter()  # successes in a cooldown that no start has used
        self._begun: Counter[Call] = Counter()
        self._hedges: Counter[Call] = Counter()
        self._failures: Counter[Call] = Counter()
        self._streak: Counter[Call] = Counter()
        self._paid: Counter[Function] = Counter()
        self._all_hedges: Counter[Function] = Counter()
        self._now = 0.0

    # what goes in

    def submit(self, call: Call) -> None:
        self.open[call] = None
        hedging = call.function.options.groups.hedging
        self._paid[call.function] += hedging.share if hedging is not None else 0  # type: ignore[assignment]

    def event(self, now: float, attempt: Attempt, outcome: Any) -> None:
        """Note an outcome before it is given to the scheduler."""
        if attempt not in self.live:
            return
        del self.live[attempt]
        self.cancels.pop(attempt, None)
        call = _call(attempt)
        where = call.function, call.key
        self.inflight[where] -= 1
        if isinstance(outcome, CallFailure):
            self._failures[call] += 1
            self._streak[call] = 0 if outcome.overloaded else self._streak[call] + 1
            if outcome.overloaded and outcome.wait is not None and outcome.wait < inf:
                if now >= self._closed_until.get(where, -inf):
                    self._room[where] = 0
                self._closed_until[where] = max(self._closed_until.get(where, -inf), now + outcome.wait)
        elif isinstance(outcome, Answer) and now < self._closed_until.get(where, -inf):
            self._room[where] += 1

    def withdraw(self, call: Call) -> None:
        if call in self.open:
            del self.open[call]
            self.withdrawn[call] = None

    def reset(self, function: Function) -> None:
        """Its starts and closed gates are forgotten, and its hedges are counted anew."""
        self._starts = {where: starts for where, starts in self._starts.items() if where[0] is not function}
        self._closed_until = {where: until for where, until in self._closed_until.items() if where[0] is not function}
        self._paid[function] = self._all_hedges[function] = 0

    def changed(self, now: float, function: Function, window: float) -> None:
        """What is older than the window was, or began without one, may be forgotten."""
        for where, starts in self._starts.items():
            while where[0] is function and starts and (starts[0] + window <= now or function.options.groups.rate is None):
                starts.popleft()

    # what comes out

    def after(self, now: float) -> list[Command]:
        """Take the commands of an input, and check everything."""
        out, self.scheduler.out = self.scheduler.out, []
        sent = []
        self._now = now
        for command in out:
            what, subject = command[:2]
            if what == SEND:
                self._sent(now, subject)
                sent.append(subject)
            elif what == CANCEL:
                self._cancelled(now, subject)
            else:
                assert what == FINISH
                self._finished(now, subject, command[2], command[4])
        self._check_order(now, sent)
        self._check_counts()
        self._check_open(now)
        self._check_heaps()
        wake = self.scheduler.next_wake()
        if wake is None or wake > now:  # else a tick is overdue
            self._check_nobody_waits_in_vain(now, inf if wake is None else wake)
        assert wake is not None or self.live or not self.open, "calls are open, nothing is under way, and nobody will wake"
        return out

    def _sent(self, now: float, attempt: Attempt) -> None:
        call = _call(attempt)
        where = call.function, call.key
        self.trace.append((now, "send", call.number, attempt.is_copy))
        assert attempt not in self.live
        assert attempt.sent_at == now
        assert call not in self.finished, "a call that has ended is tried"
        assert call not in self.withdrawn, "a call that was withdrawn is tried"
        assert now < call.deadline, "a try begins when its call has run out of time"
        is_closed = now < self._closed_until.get(where, -inf)
        assert self._room[where] or not is_closed, "a key is tried that asked to be left alone, and nothing has succeeded since"
        self._room[where] = max(0, self._room[where] - 1) if is_closed else 0
        self._check_rate(now, call, self._starts.setdefault(where, deque()))
        beside = [other for other in self.live if other.task is call]
        if attempt.is_copy:
            self._check_hedge(call, beside)
        else:
            allowed = min(call.options.groups.parallel_tries, 1 + self._streak[call])
            assert sum(not other.is_copy for other in beside) < max(1, allowed), "too many tries abreast"
        self._begun[call] += 1
        paid = (
            self._failures[call] if call.options.groups.parallel_tries == 1 else inf * self._failures[call] if self._failures[call] else 0
        )
        assert self._begun[call] - self._hedges[call] <= 1 + min(call.options.groups.retries, paid), "too many retries"
        assert call.key_state.trusts(call), "a call is tried although the breaker is open"
        self.live[attempt] = None
        self.inflight[where] += 1
        self.sends.append((now, attempt))

    def _check_rate(self, now: float, call: Call, starts: deque[float]) -> None:
        rate = call.function.options.groups.rate
        if rate is None:
            starts.clear()
            return
        while starts and starts[0] + rate.window <= now:
            starts.popleft()
        assert len(starts) < rate.size or not call.options.groups.paced, f"{len(starts) + 1} starts in {rate.window} s"
        starts.append(now)

    def _check_hedge(self, call: Call, beside: list[Attempt]) -> None:
        hedging, function = call.options.groups.hedging, call.function
        assert hedging is not None
        assert beside, "a hedge of nothing"
        self._hedges[call] += 1
        assert self._hedges[call] <= hedging.most, "too many hedges of one call"
        self._all_hedges[function] += 1
        assert self._all_hedges[function] <= HEDGES_AT_ONCE + self._paid[function] + ROUNDING, "more hedges than calls have paid for"
        assert not call.key_state.queue, "a hedge although somebody waits for the key"
        assert not self.scheduler.ready, "a hedge although somebody waits for room"

    def _cancelled(self, now: float, attempt: Attempt) -> None:
        call = _call(attempt)
        assert attempt in self.live, "a try that is not under way is cancelled"
        assert attempt not in self.cancels, "a try is cancelled twice"
        assert call.done, "a try is cancelled, and its call goes on"
        assert attempt.cancel_reason is not None
        self.cancels[attempt] = None
        self.trace.append((now, "cancel", call.number, attempt.cancel_reason))

    def _finished(self, now: float, call: Call, outcome: Any, seconds: float) -> None:
        assert call not in self.finished, "a call ends twice"
        assert call not in self.withdrawn, "a withdrawn call ends"
        assert isinstance(outcome, Answer | BaseException)
        del self.open[call]
        self.finished[call] = outcome
        self.finished_at[call] = now
        self.trace.append((now, "finish", call.number, type(outcome).__name__, str(outcome) if isinstance(outcome, Exception) else ""))
        assert isinstance(outcome, Answer) or not seconds
        if isinstance(outcome, CircuitOpen):
            assert call.key_state.options.circuit_breaker_threshold is not None
            assert not self._failures[call]
        whys = {attempt.cancel_reason for attempt in self.live if attempt.task is call}
        if isinstance(outcome, RequestTimeout):
            assert now >= call.deadline
            assert whys <= {CancelReason.OVERDUE}
        else:
            assert whys <= {CancelReason.BEATEN if isinstance(outcome, Answer) else CancelReason.ABANDONED}

    # what must hold between inputs

    def key_states(self) -> Iterator[KeyState]:
        for function in self.functions:
            yield from function.keys.values()

    def _check_order(self, now: float, sent: list[Attempt]) -> None:
        """Who is still waiting for room alone is behind all that went."""
        waiting = [call for key_state in self.key_states() for call in [key_state.queue.first()] if call is not None]
        for attempt in sent:
            went = _call(attempt)
            for call in waiting:
                only_room = call.key_state.starts is None and (call.key_state.closed_until <= now or call.key_state.room > 0)
                assert (
                    attempt.is_copy
                    or not (call.key_state is went.key_state or only_room)
                    or went.order <= call.order
                    or not went.options.groups.paced
                ), "somebody was overtaken"

    def _check_counts(self) -> None:
        group = self.scheduler
        assert group.inflight == len(self.live)
        most = min((function.options.groups.most for function in self.functions if function.options.groups.most is not None), default=inf)
        assert group.limit <= most
        adapting = [
            function.options.groups.adapting
            for function in self.functions
            if function.options.groups.rate is None and function.options.groups.adapting
        ]
        assert bool(adapting) == (group.adaptive is not None)
        if adapting:
            assert min(most, *(limits.least for limits in adapting)) <= group.limit <= max(limits.most for limits in adapting)
        for function in self.functions:
            for key, key_state in function.keys.items():
                assert key_state.inflight == self.inflight[function, key]
                if key_state.starts is not None:
                    assert key_state.limit <= function.options.groups.rate.size  # type: ignore[union-attr]
            assert function.hedges_left >= 0
        timers = self.scheduler._timers
        held = sum(call in timers for call in self.open) + sum(key_state in timers for key_state in self.key_states())
        assert len(timers) == held, "the timers hold something dead, or lost something"

    def _check_open(self, now: float) -> None:
        calls: Counter[KeyState] = Counter()
        for call in self.open:
            calls[call.key_state] += 1
            assert call.function.keys[call.key] is call.key_state, "the key of an open call was forgotten"
            timer = self.scheduler._timers._entries.get(call, (inf,))[0]
            assert timer <= min(call.deadline, call.retry_at, call.hedge_at), "nobody looks when something is due"
            assert list(call.tried) == [attempt for attempt in self.live if attempt.task is call]
            assert call.tried or call.planned, "a call waits for nothing"
            assert call.retry_at == inf or call not in call.key_state.queue, "a call waits for two tries at once"
        for key_state in self.key_states():
            assert key_state.calls == calls[key_state]
            assert len(key_state.queue) == sum(call.key_state is key_state and call in key_state.queue for call in self.open), (
                "a line holds something dead"
            )

    def _check_heaps(self) -> None:
        heaps: list[IndexedHeap[Any]] = [
            self.scheduler.ready,
            self.scheduler._timers,
            *(key_state.queue for key_state in self.key_states()),
        ]
        for heap in heaps:
            assert len(heap._heap) <= 2 * len(heap) + SWEEP

    def _check_nobody_waits_in_vain(self, now: float, wake: float) -> None:
        """Work conservation, exact wake times, and deadlines."""
        group = self.scheduler
        for key_state in self.key_states():
            first = key_state.queue.first()
            if first is None:
                assert key_state not in group.ready
                assert key_state not in self.scheduler._timers
                continue
            at = key_state.ready_at(first)
            assert at > now or group.inflight >= group.limit, f"{key_state} could be tried, and a call waits"
            assert at <= now or wake <= at, f"{key_state} can be tried at {at}, and nobody will wake before {wake}"
        for call in self.open:
            assert call.deadline > now, f"a call is open at {now}, its deadline was {call.deadline}"

    def check_all_over(self) -> None:
        """At the end of everything nothing is left behind."""
        assert not self.open, f"{len(self.open)} calls have no end"
        assert not self.live, f"{len(self.live)} tries are left"
        assert self.scheduler.next_wake() is None, "there is nothing to wake for"
        assert not self.scheduler.inflight
        assert all(key_state.idle for key_state in self.key_states())


def _call(attempt: Attempt) -> Call:
    call = attempt.task
    assert isinstance(call, Call)
    return call
