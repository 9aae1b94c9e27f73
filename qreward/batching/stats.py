"""What has happened in a queue, counted, over all its event loops and instances, those that are gone too.

Each batch counts with one call, under a lock, since loops run in threads. Knows neither queues nor loops.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass

from qreward.engine import background as forks

KEPT = 1024
"""The latest waits and run times of which percentiles are told."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Where a queue stands, and what it has done; over all event loops.

    Args:
        waiting: items that wait, those of no batch yet.
        in_flight: batches under way.
        batches: batches sent.
        items: items sent.
        mean_size: items a batch.
        limit: the largest batch now, which ``adaptive_batch_size`` finds out.
        failed: items that got an error from the function.
        rejected: items refused because the queue was full.
        expired: items whose timeout passed.
        cancelled: items whose caller left.
        wait_p50: seconds from submission to sending, the median of the latest.
        wait_p95: 95 % of the latest waited less.
        run_p50: seconds the function took, the median of the latest.
        run_p95: 95 % of the latest took less.
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


@dataclass
class StartTimes:
    """When the batches under way were started, in seconds since the epoch."""

    start_times: list[float]

    @property
    def min_start_time(self) -> float | None:
        """The earliest."""
        return min(self.start_times, default=None)

    @property
    def mean_start_time(self) -> float | None:
        """Their mean."""
        return sum(self.start_times) / len(self.start_times) if self.start_times else None

    @property
    def max_start_time(self) -> float | None:
        """The latest."""
        return max(self.start_times, default=None)

    @property
    def num_requests(self) -> int:
        """How many batches are under way."""
        return len(self.start_times)


COUNTED = ("batches", "items", "failed", "rejected", "expired", "cancelled")


class Counters:
    """Counters by the names of :class:`QueueStats`. A forked child begins with none."""

    __slots__ = ("__weakref__", "_counts", "_lock", "_runs", "_waits")

    def __init__(self) -> None:
        self._begin()
        forks.watch(self, Counters._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._waits: deque[float] = deque(maxlen=KEPT)
        self._runs: deque[float] = deque(maxlen=KEPT)

    def count(self, name: str, items: int = 1) -> None:
        """So many items more."""
        with self._lock:
            self._counts[name] += items

    def sent(self, waits: list[float]) -> None:
        """A batch was sent whose items had waited so long, in seconds."""
        with self._lock:
            self._counts["batches"] += 1
            self._counts["items"] += len(waits)
            self._waits.extend(waits)

    def ended(self, seconds: float, failed: int) -> None:
        """A batch took so long, and so many of its items got an error from the function."""
        with self._lock:
            self._counts["failed"] += failed
            self._runs.append(seconds)

    def snapshot(self, waiting: int, in_flight: int, limit: float) -> QueueStats:
        """The counts, and where the queue stands now."""
        with self._lock:
            sums = {name: self._counts[name] for name in COUNTED}
            waits, runs = sorted(self._waits), sorted(self._runs)
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
