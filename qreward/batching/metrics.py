"""Metrics of batches: for OpenTelemetry if the program has set up its SDK, and ``serve_batch_*`` in a replica of Ray Serve."""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

from qreward.batching.ray_serve import replica

FUNCTION = "qreward.batching.function"  # attribute with the name of the batch function
HISTOGRAMS = {  # suffix of a name ``qreward.batching.<suffix>`` -> unit, description and bucket boundaries
    "size": ("{item}", "Size of a batch, in items or in the unit of batch_size_fn.", [2.0**power for power in range(13)]),
    "utilization": ("1", "Size of a batch as a fraction of max_batch_size.", [number / 10 for number in range(1, 11)]),
    "wait": ("s", "Time that the first item of a batch waited.", [0.001 * 2**power for power in range(16)]),
    "duration": ("s", "Run time of the batch function.", [0.001 * 2**power for power in range(20)]),
}
_of_provider: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
_of_serve: list[Any] = []


def are_recorded() -> bool:
    """Return whether the program records metrics of batches."""
    return bool(_histograms()) or ("ray.serve.metrics" in sys.modules and replica() is not None)


def record(name: str, size: float, limit: float, wait: float, seconds: float, waiting: int) -> None:
    """Record a batch that has ended. Times are in seconds; ``waiting`` is the number of items that wait for the next batch."""
    for histogram, value in zip(_histograms(), (size, size / limit, wait, seconds), strict=False):
        histogram.record(value, {FUNCTION: name})
    if "ray.serve.metrics" in sys.modules and replica() is not None:
        tags, (*histograms, length, batches) = {"function_name": name}, _serve_metrics()
        for histogram, value in zip(histograms, (size, 100 * size / limit, 1000 * wait, 1000 * seconds), strict=True):
            histogram.observe(value, tags=tags)
        length.set(waiting, tags=tags)
        batches.inc(tags=tags)


def _histograms() -> list[Any]:
    """Return the histograms of OpenTelemetry's global meter provider; an empty list if there is none that records."""
    api = sys.modules.get("opentelemetry.metrics")
    provider = None if api is None else api.get_meter_provider()
    if provider is None or type(provider).__module__.startswith("opentelemetry.metrics"):
        return []
    found = _of_provider.get(provider)
    if found is None:
        meter = provider.get_meter("qreward")
        found = _of_provider[provider] = [
            meter.create_histogram(f"qreward.batching.{suffix}", unit, description, explicit_bucket_boundaries_advisory=buckets)
            for suffix, (unit, description, buckets) in HISTOGRAMS.items()
        ]
    return found


def _serve_metrics() -> list[Any]:
    if not _of_serve:
        metrics, constants = sys.modules["ray.serve.metrics"], sys.modules.get("ray.serve._private.constants")

        def histogram(name: str, description: str, buckets: str, otherwise: list[float]) -> Any:
            boundaries = getattr(constants, buckets, otherwise)
            return metrics.Histogram(name, description=description, boundaries=boundaries, tag_keys=("function_name",))

        times = [2.0**power for power in range(20)]
        _of_serve[:] = [
            histogram("serve_actual_batch_size", "Size of each batch.", "BATCH_SIZE_BUCKETS", times),
            histogram("serve_batch_utilization_percent", "Size in % of max_batch_size.", "BATCH_UTILIZATION_BUCKETS_PERCENT", times),
            histogram("serve_batch_wait_time_ms", "Time that the first request waited.", "BATCH_WAIT_TIME_BUCKETS_MS", times),
            histogram("serve_batch_execution_time_ms", "Run time of the function.", "BATCH_EXECUTION_TIME_BUCKETS_MS", times),
            metrics.Gauge("serve_batch_queue_length", description="Requests that wait for a batch.", tag_keys=("function_name",)),
            metrics.Counter("serve_batches_processed", description="Batches that have ended.", tag_keys=("function_name",)),
        ]
    return _of_serve
