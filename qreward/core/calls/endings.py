"""The errors that calls are ended with by the scheduler itself, and why they wait."""

from __future__ import annotations

from qreward.core.calls.call import Call
from qreward.core.calls.lane import Lane
from qreward.errors import CircuitOpen, RequestError, RequestTimeout


def timed_out(call: Call) -> RequestTimeout:
    """The call took longer than it may."""
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


def open_circuit(now: float, lane: Lane) -> CircuitOpen:
    """The breaker lets nobody through."""
    breaker = lane.breaker
    assert breaker is not None
    left = breaker.open_until - now
    then = f"it is tried again in {left:.3g} s" if left > 0 else "one call is testing it now"
    return CircuitOpen(
        f"{lane.name} failed {breaker.failures} times in a row and is not called for the time being (circuit breaker); {then}"
    )


def stopped(call: Call) -> BaseException:
    """Somebody else cancelled what was under way."""
    return call.error or RequestError(f"{call.lane.name}: its try was cancelled by other code")


def why_waiting(now: float, call: Call) -> str:
    """What stands in a call's way."""
    lane = call.lane
    ready = lane.ready_at(call) - now
    if ready > 0:
        return f"waits for the rate limit: {ready:.3g} s, {len(lane.line)} in line"
    group = call.function.group
    return f"waits for room: {group.inflight} of {group.limit:g} in flight"
