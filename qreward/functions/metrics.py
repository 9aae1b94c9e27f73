"""Metrics of decorated functions: one record per call, and a snapshot of the counters. Plain values; no clock, no OpenTelemetry."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "failed", "timeout", "circuit_open", "cancelled"]


@dataclass(frozen=True, slots=True)
class ScheduleMetrics:
    """One finished call of a decorated function, as ``metrics_callback`` and ``telemetry_exporter`` receive it.

    Attributes:
        function: qualified name of the function, with its module.
        key: the key that ``key_func`` returned; None without ``key_func``.
        outcome: ``ok``, ``failed`` (the function raised), ``timeout``, ``circuit_open`` (the call was rejected by the circuit breaker), or
            ``cancelled`` (by the caller).
        error: class name of the exception, or None. The message is left out because it may hold secrets.
        defaulted: whether the caller received ``default_result``.
        tries: number of runs of the function. Of these, ``retries`` followed a failure, and ``hedges`` ran beside another try.
        queued: seconds before the first try.
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
        """Whether the function returned."""
        return self.outcome == "ok"


@dataclass(frozen=True, slots=True)
class ScheduleStats:
    """Counters of a decorated function since it was defined or reset.

    Attributes:
        calls: calls made. Of those that ended, ``ok`` returned and ``failed`` ended with an exception. Of the failed calls, ``timeouts``
            exceeded the time limit, and ``refused`` were rejected by the open circuit breaker.
        tries: number of runs of the function. Of these, ``retries`` followed a failure, and ``hedges`` ran beside another try.
        hedges_won: hedges that returned before the try they hedged.
        overloaded: tries rejected because of overload (429, 503 and the like).
        waiting, inflight: calls currently waiting for a rate limit or a concurrency slot, and tries currently running.
        limit: tries that may currently run at once, over all functions of the pool; None without a limit.
        rate: tries that a key may currently begin per ``limit_window``; None without a limit. With ``adaptive_limit``, the lowest of all
            keys.
        keys: number of keys in memory, of which ``open_circuits`` have an open circuit breaker.
        p50, p95, p99: percentiles of the seconds that successful tries took; None before the first.
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
