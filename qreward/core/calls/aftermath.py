"""What a try that has ended tells of its key and of the limits that move, and when its call is tried again."""

from __future__ import annotations

from math import inf
from random import Random

from qreward.core.calls.call import Call
from qreward.core.calls.outcome import Raised
from qreward.core.outcome import Answer
from qreward.core.retry import backoff
from qreward.core.task import Attempt, Why


def learn(now: float, attempt: Attempt, call: Call, outcome: Answer | Raised) -> bool:
    """Tell whom it concerns, whether anybody waits for it or not. True if the breaker has opened now.

    Overload says nothing of health, and a try whose call has run out of time was counted when it did.
    """
    counted = attempt.why is Why.OVERDUE
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
    """A try failed, or took longer than its call may. True if the breaker has opened now."""
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
    """When one more try may be made, the number of tries allowing it; inf if never.

    Args:
        now: in seconds.
        call: a try of it has failed.
        rng: for the jitter.
        told: seconds that the last failure or the user asks to wait; they are used to the letter.
    """
    if told is None:
        pause = backoff(call.terms.pause, call.retries + 1, rng)
        at = max(now + min(pause, (call.deadline - now) / 2), call.not_before)  # rather sooner than never
    else:
        at = now + told
    breaker = call.lane.breaker
    closed = breaker is not None and not breaker.trusts(call) and at < breaker.open_until
    return inf if at >= call.deadline or closed else at
