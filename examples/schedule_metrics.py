"""``metrics_callback`` receives a record of each call, and ``telemetry_exporter`` puts it into a histogram of OpenTelemetry.

Run it: ``python examples/schedule_metrics.py``.
"""

from __future__ import annotations

import asyncio
import contextlib

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from qreward import CircuitOpen, ScheduleMetrics, Telemetry, TelemetryExporter, schedule

READER = InMemoryMetricReader()  # to print them here; qreward.telemetry.configure() sends metrics to a collector


def record(metrics: ScheduleMetrics) -> None:
    print(f"{metrics.outcome:>12}: {metrics.tries} tries, {metrics.retries} retries, error {metrics.error}, key {metrics.key}")


@schedule(
    retry_times=1,
    retry_interval=0.01,
    timeout=0.2,
    circuit_breaker_threshold=3,
    key_func=lambda answer: answer,
    metrics_callback=record,
    telemetry_exporter=TelemetryExporter(Telemetry(meter_provider=MeterProvider([READER]))),
    exception_types=ConnectionError,
)
async def judge(answer: str) -> float:
    if answer == "fails":
        raise ConnectionError("the judge is down")
    if answer == "hangs":
        await asyncio.sleep(10.0)
    return 1.0


async def main() -> None:
    for answer in ("good", "fails", "hangs", "fails", "fails"):
        with contextlib.suppress(ConnectionError, TimeoutError, CircuitOpen):
            await judge(answer)


def histogram() -> list[tuple[str, int]]:
    """Error types, and how many calls ended so."""
    data = READER.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
    points = [point for scope in scopes for metric in scope.metrics for point in metric.data.data_points]
    return [(str((p.attributes or {}).get("error.type")), p.count) for p in points if isinstance(p, HistogramDataPoint)]


if __name__ == "__main__":
    asyncio.run(main())
    print("qreward.schedule.duration, calls by error.type:", dict(histogram()))
