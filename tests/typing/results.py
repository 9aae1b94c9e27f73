"""Results and errors as reward code reads them. Checked by mypy and pyright, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_type

from qreward import (
    AttemptRecord,
    BatchInterrupted,
    BatchResult,
    BatchStats,
    EndpointStats,
    QRewardError,
    RequestError,
    RequestTimeout,
    Result,
    Usage,
)


def rewards(batch: BatchResult[str]) -> list[float | None]:
    assert_type(batch[0], Result[str])
    assert_type(batch[:2], list[Result[str]])
    assert_type(batch.stats, BatchStats)
    assert_type(batch.stats.endpoints, Mapping[str, EndpointStats])
    assert_type(batch.stats.endpoints["gpu-0"].p95, float | None)
    results: Sequence[Result[str]] = batch
    return [float(result.text) if result.ok else None for result in results]


def one(result: Result[str]) -> float:
    assert_type(result.value, str)
    assert_type(result.error, QRewardError | None)
    assert_type(result.usage, Usage | None)
    assert_type(result.endpoint, str | None)
    assert_type(result.attempts, tuple[AttemptRecord, ...])
    return result.latency + result.queued


def fault(error: RequestError) -> str:
    assert_type(error.attempts, tuple[AttemptRecord, ...])
    assert_type(error.status_code, int | None)
    return error.endpoint or "none was reached"


def also_a_builtin_error(error: RequestTimeout) -> TimeoutError:
    return error


def interrupted(error: BatchInterrupted) -> BatchResult[object] | None:
    return error.results


def refused(result: Result[str], stats: EndpointStats) -> None:
    result.value = "x"  # type: ignore[misc]
    stats.sent = 1  # type: ignore[misc]
