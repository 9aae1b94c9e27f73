"""What a batched function has in a replica of Ray Serve: request contexts, a warning and metrics."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from qreward.batching.settings import BatchSettings
from qreward.errors import InvalidResponse

_log = logging.getLogger("qreward")


def serve_context() -> Any:
    """Return the module ``ray.serve.context``, or None if this process does not use Ray Serve, or a version without request contexts."""
    module = sys.modules.get("ray.serve.context")
    return module if hasattr(module, "_set_batch_request_context") else None


def replica() -> Any:
    """Return the context of the replica in which this process runs, or None."""
    module = serve_context()
    return None if module is None else module._get_internal_replica_context()


def invalid_length(message: str) -> InvalidResponse:
    """Return the error of a list of the wrong length. In a process with Ray Serve, it is a ``RayServeException`` as well."""
    exceptions = sys.modules.get("ray.serve.exceptions")
    return InvalidResponse(message) if exceptions is None else _both(exceptions.RayServeException)(message)


@cache
def _both(base: type[Exception]) -> type[InvalidResponse]:
    return type("InvalidResponse", (InvalidResponse, base), {})


def warn_of_ongoing_requests(name: str, its: BatchSettings) -> None:
    """Log a warning if the replica does not receive enough requests at once to fill the batches."""
    context, needed = replica(), its.max_batch_size * its.max_concurrent_batches
    most = None if context is None or its.batch_size_fn is not None else context._deployment_config.max_ongoing_requests
    if most is not None and most < needed:
        _log.warning(
            "%s: `max_batch_size` (%d) * `max_concurrent_batches` (%d) is larger than `max_ongoing_requests` (%d), so the replica never "
            "receives enough requests at once to fill its batches; set `max_ongoing_requests` to at least %d",
            *(name, its.max_batch_size, its.max_concurrent_batches, most, needed),
        )


class StartTimes(NamedTuple):
    """The times at which the running batches began, in seconds since the epoch, and their statistics."""

    start_times: Sequence[float]
    num_requests: int
    min_start_time: float | None
    mean_start_time: float | None
    max_start_time: float | None


def record_batch(name: str, size: float, limit: float, wait: float, seconds: float, waiting: int) -> None:
    """Record a batch that has ended in the metrics of Ray Serve, if this process is a replica. Times are in seconds."""
    if "ray.serve.metrics" not in sys.modules or replica() is None:
        return
    tags, (*histograms, length, batches) = {"function_name": name}, _metrics()
    for histogram, value in zip(histograms, (size, 100 * size / limit, 1000 * wait, 1000 * seconds), strict=True):
        histogram.observe(value, tags=tags)
    length.set(waiting, tags=tags)
    batches.inc(tags=tags)


@cache
def _metrics() -> list[Any]:
    metrics, constants = sys.modules["ray.serve.metrics"], sys.modules.get("ray.serve._private.constants")

    def histogram(name: str, description: str, buckets: str) -> Any:
        boundaries = getattr(constants, buckets, [2.0**power for power in range(20)])
        return metrics.Histogram(name, description=description, boundaries=boundaries, tag_keys=("function_name",))

    return [
        histogram("serve_actual_batch_size", "Size of each batch.", "BATCH_SIZE_BUCKETS"),
        histogram("serve_batch_utilization_percent", "Size in % of max_batch_size.", "BATCH_UTILIZATION_BUCKETS_PERCENT"),
        histogram("serve_batch_wait_time_ms", "Time that the first request waited.", "BATCH_WAIT_TIME_BUCKETS_MS"),
        histogram("serve_batch_execution_time_ms", "Run time of the function.", "BATCH_EXECUTION_TIME_BUCKETS_MS"),
        metrics.Gauge("serve_batch_queue_length", description="Requests that wait for a batch.", tag_keys=("function_name",)),
        metrics.Counter("serve_batches_processed", description="Batches that have ended.", tag_keys=("function_name",)),
    ]
