"""Counters of a batch queue. They include all event loops and all instances, even those that no longer exist."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from qreward.engine import background

KEPT = 1024  # number of the latest wait times, and of the latest run times, from which percentiles are computed


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Holds the state of a queue and its counters, over all event loops.

    Args:
        waiting: number of items that are not in a batch yet.
        in_flight: number of running batches.
        batches: number of batches sent.
        items: number of items sent.
        mean_size: mean number of items per batch.
        limit: the maximum batch size.
        failed: number of items that received an error from the function.
        rejected: number of items that were rejected because the queue was full.
        expired: number of items whose timeout passed.
        cancelled: number of items whose caller stopped waiting.
        wait_p50: median of the seconds from submission to sending, over the latest 1,024 items.
        wait_p95: 95th percentile of the seconds from submission to sending, over the latest 1,024 items.
        run_p50: median of the seconds that the function took, over the latest 1,024 batches.
        run_p95: 95th percentile of the seconds that the function took, over the latest 1,024 batches.
    """

    waiting: int
    in_flight: int
    batches: int
    items: int
    mean_size: float
    limit: float
    failed: int
    rejected: int
    expired: int
    cancelled: int
    wait_p50: float
    wait_p95: float
    run_p50: float
    run_p95: float


class BatchCounters:
    """Thread-safe counters. They have the names of the fields of :class:`QueueStats`. A forked child process starts with zeros."""

    __slots__ = ("__weakref__", "_counts", "_lock", "_runs", "_waits")

    def __init__(self) -> None:
        self._begin()
        background.watch(self, BatchCounters._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("batches", "items", "failed", "rejected", "expired", "cancelled"), 0)
        self._waits: deque[float] = deque(maxlen=KEPT)
        self._runs: deque[float] = deque(maxlen=KEPT)

    def count(self, name: str, items: int = 1) -> None:
        with self._lock:
            self._counts[name] += items

    def sent(self, waits: list[float]) -> None:
        with self._lock:
            self._counts["batches"] += 1
            self._counts["items"] += len(waits)
            self._waits.extend(waits)

    def ended(self, seconds: float, failed: int) -> None:
        with self._lock:
            self._counts["failed"] += failed
            self._runs.append(seconds)

    def snapshot(self, waiting: int, in_flight: int, limit: float) -> QueueStats:
        with self._lock:
            sums, waits, runs = dict(self._counts), sorted(self._waits), sorted(self._runs)
        return QueueStats(
            waiting=waiting,
            in_flight=in_flight,
            mean_size=sums["items"] / sums["batches"] if sums["batches"] else 0.0,
            limit=limit,
            wait_p50=_quantile(waits, 0.5),
            wait_p95=_quantile(waits, 0.95),
            run_p50=_quantile(runs, 0.5),
            run_p95=_quantile(runs, 0.95),
            **sums,
        )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
