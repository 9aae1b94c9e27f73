"""What is told of decorated functions: one record a call, and a snapshot of all. Plain values, no clock, no OpenTelemetry."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "failed", "timeout", "circuit_open", "cancelled"]


@dataclass(frozen=True, slots=True)
class ScheduleMetrics:
    """One call of a decorated function that has ended, as ``metrics_callback`` and ``telemetry_exporter`` get it.

    Attributes:
        function: its qualified name, with its module.
        key: what ``key_func`` gave, None without one.
        outcome: ``ok``, ``failed`` (it raised), ``timeout``, ``circuit_open`` (it was not tried), or ``cancelled`` (by the caller).
        error: class name of the exception, or None. Not its message, which may hold anything.
        defaulted: the caller got ``default_result``.
        tries: how often the function was begun, ``retries`` of them after a failure, ``hedges`` while another was under way.
        queued: seconds before it was first begun.
        latency: seconds from the call to its end, waiting and retries included.
    """

    function: str
    key: Hashable
    outcome: Outcome
    error: str | None
    defaulted: bool
    tries: int
    retries: int
    hedges: int
    queued: float
    latency: float

    @property
    def ok(self) -> bool:
        """The function returned."""
        return self.outcome == "ok"


@dataclass(frozen=True, slots=True)
class ScheduleStats:
    """What a decorated function did since it was defined or reset.

    Attributes:
        calls: that were made; of those that ended, ``ok`` returned and ``failed`` raised, ``timeouts`` and ``refused`` of them for
            want of time, and because the circuit breaker was open.
        tries: how often the function was begun, ``retries`` of them after a failure, ``hedges`` while another was under way.
        hedges_won: hedges that returned before what they hedged.
        overloaded: tries that were turned away (429, 503 and the like).
        waiting, inflight: calls that wait for a rate limit or for room, and tries under way, now.
        limit: tries that may be under way now over all functions of the pool, None if any number may.
        rate: tries that ``limit_window`` allows a key now, None without a limit; with ``adaptive_limit`` the least of all keys.
        keys: keys that are remembered, ``open_circuits`` of them with an open breaker.
        p50, p95, p99: seconds that successful tries took, None before the first.
    """

    calls: int
    ok: int
    failed: int
    timeouts: int
    refused: int
    tries: int
    retries: int
    hedges: int
    hedges_won: int
    overloaded: int
    waiting: int
    inflight: int
    limit: int | None
    rate: int | None
    keys: int
    open_circuits: int
    p50: float | None
    p95: float | None
    p99: float | None
