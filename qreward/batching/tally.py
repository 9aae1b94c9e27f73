"""What has happened in a queue, counted.

Pure. A tally belongs to one event loop; a snapshot adds several up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

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


class Tally:
    """Counters of one event loop; the names are those of :class:`QueueStats`."""

    __slots__ = ("batches", "cancelled", "expired", "failed", "items", "rejected", "runs", "waits")

    def __init__(self) -> None:
        self.batches = self.items = self.failed = self.rejected = self.expired = self.cancelled = 0
        self.waits: deque[float] = deque(maxlen=KEPT)
        self.runs: deque[float] = deque(maxlen=KEPT)


COUNTED = ("batches", "items", "failed", "rejected", "expired", "cancelled")


def snapshot(tallies: Iterable[Tally], waiting: int, in_flight: int, limit: float) -> QueueStats:
    """Add up the tallies of several loops."""
    tallies = list(tallies)
    sums = {name: sum(getattr(tally, name) for tally in tallies) for name in COUNTED}
    waits = sorted(seconds for tally in tallies for seconds in list(tally.waits))
    runs = sorted(seconds for tally in tallies for seconds in list(tally.runs))
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
