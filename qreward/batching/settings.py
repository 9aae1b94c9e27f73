"""The settings of a batch queue, and what it reports: records of batches, and counters."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, SupportsIndex, TypedDict

from qreward.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Data about a batch that has ended. ``on_batch`` receives this object.

    Args:
        name: name of the batch function.
        items: number of items in the batch.
        size: sum of the sizes that ``batch_size_fn`` returned for each item alone. Without ``batch_size_fn``, the number of items.
        limit: the maximum size of the batch.
        waits: seconds that each item waited.
        seconds: run time of the function in seconds.
        waiting: number of items that were waiting when the batch ended.
        error: the exception that the function raised, or the error of its invalid return value; None on success.
    """

    name: str
    items: int
    size: float
    limit: float
    waits: tuple[float, ...]
    seconds: float
    waiting: int
    error: BaseException | None


class Options(TypedDict, total=False):
    """The settings as keyword arguments. See :class:`BatchSettings`."""

    max_batch_size: int
    batch_wait_timeout_s: float
    max_concurrent_batches: int
    batch_size_fn: Callable[[list[Any]], float] | None
    batch_key_fn: Callable[[Any], Hashable] | None
    max_queue_size: int | None
    timeout: float | None
    stream_timeout: float | None
    on_batch: Callable[[BatchRecord], object] | None


@dataclass(frozen=True)
class BatchSettings:
    """The settings of ``@batch`` and ``BatchQueue``.

    Args:
        max_batch_size: maximum number of items in a batch or, with ``batch_size_fn``, its maximum size.
        batch_wait_timeout_s: seconds from the submission of its first item for which a batch that is not full waits for more items while a
            slot is free. 0 means that a batch waits only for a free slot.
        max_concurrent_batches: maximum number of batches that run at once, in each event loop.
        batch_size_fn: function that returns the size of a list of items, such as the number of their tokens. It receives a list of the
            first argument of each call. The size must not decrease when an item is added to the list.
        batch_key_fn: function that returns the key of an item, such as its model, from the first argument of its call. Only items with
            equal keys share a batch.
        max_queue_size: maximum number of waiting items, in each event loop. Further items are rejected with ``QueueFull``.
        timeout: maximum number of seconds from the submission of an item to its result. Afterwards, ``RequestTimeout`` is raised.
        stream_timeout: maximum number of seconds for which a stream that is not read may delay the other streams of its batch. Afterwards,
            the stream ends with ``RequestTimeout``.
        on_batch: function that is called with a :class:`BatchRecord` when a batch has ended.

    Raises:
        TypeError: a value has the wrong type.
        ConfigError: a value is out of range. ``ConfigError`` is a ``ValueError``.
    """

    max_batch_size: int = 10
    batch_wait_timeout_s: float = 0.0
    max_concurrent_batches: int = 1
    batch_size_fn: Callable[[list[Any]], float] | None = None
    batch_key_fn: Callable[[Any], Hashable] | None = None
    max_queue_size: int | None = None
    timeout: float | None = None
    stream_timeout: float | None = 60.0
    on_batch: Callable[[BatchRecord], object] | None = None

    def __post_init__(self) -> None:
        size: Any = self.max_batch_size
        size = int(size) if isinstance(size, float) and size.is_integer() else size
        if isinstance(size, bool) or not isinstance(size, SupportsIndex):
            raise TypeError(f"max_batch_size must be integer >= 1, got {size}")
        object.__setattr__(self, "max_batch_size", size.__index__())
        check_whole("max_batch_size", self.max_batch_size)
        check_whole("max_concurrent_batches", self.max_concurrent_batches)
        check_whole("max_queue_size", self.max_queue_size, optional=True)
        wait: Any = self.batch_wait_timeout_s
        if isinstance(wait, bool) or not isinstance(wait, int | float):
            raise TypeError(f"batch_wait_timeout_s must be a float >= 0, got {wait}")
        if not (isfinite(wait) and wait >= 0):
            raise ConfigError(f"batch_wait_timeout_s must be a float >= 0, got {wait}")
        check_seconds("timeout", self.timeout)
        check_seconds("stream_timeout", self.stream_timeout)
        for name in ("batch_size_fn", "batch_key_fn", "on_batch"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be a callable or None, got {type(value)}")


def checked(options: Options) -> BatchSettings:
    """Build settings from keyword arguments. An unknown name raises a ``ConfigError`` that suggests the closest valid name."""
    known = [field.name for field in fields(BatchSettings)]
    for name in options:
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}; {did_you_mean(name, known, otherwise='the settings are')}")
    return BatchSettings(**options)


def check_whole(name: str, value: Any, least: int = 1, *, optional: bool = False) -> None:
    """Raise ``TypeError`` or ``ConfigError`` if a value is not an integer of at least ``least``. ``optional`` allows None."""
    message = f"{name} must be an integer >= {least}{' or None' * optional}, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, int):
        if value is None and optional:
            return
        raise TypeError(message)
    if value < least:
        raise ConfigError(message)


def check_seconds(name: str, value: Any) -> None:
    """Raise ``TypeError`` or ``ConfigError`` if a value is neither a positive number of seconds nor None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, got {value!r}")
    if not (isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a positive number of seconds or None, got {value!r}")


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
    """Thread-safe counters. They have the names of the fields of :class:`QueueStats`."""

    __slots__ = ("_counts", "_lock", "_runs", "_waits")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("batches", "items", "failed", "rejected", "expired", "cancelled"), 0)
        self._waits: deque[float] = deque(maxlen=KEPT)
        self._runs: deque[float] = deque(maxlen=KEPT)

    def count(self, *, waits: Iterable[float] = (), runs: Iterable[float] = (), **counts: int) -> None:
        """Add to the counters, and to the latest wait times and run times."""
        with self._lock:
            for name, more in counts.items():
                self._counts[name] += more
            self._waits.extend(waits)
            self._runs.extend(runs)

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
