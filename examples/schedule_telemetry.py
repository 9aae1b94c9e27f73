"""``telemetry_exporter``: each call of a function in the histogram ``qreward.schedule.duration`` of OpenTelemetry.

Here the metrics are kept in memory, to be printed; in production ``qreward.telemetry.configure()`` sends them to a collector.
"""

from __future__ import annotations

import contextlib

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from qreward import Telemetry, TelemetryExporter, schedule

READER = InMemoryMetricReader()
EXPORTER = TelemetryExporter(Telemetry(meter_provider=MeterProvider([READER])))


@schedule(telemetry_exporter=EXPORTER, retry_times=1, retry_interval=0.01, timeout=5)
def judge(answer: str) -> float:
    if answer == "?":
        raise ConnectionError("the judge is away")
    return 1.0


@schedule(telemetry_exporter=EXPORTER)
def parse(text: str) -> float:
    return float(text)


if __name__ == "__main__":
    for answer in ("42", "43", "?"):
        with contextlib.suppress(ConnectionError):
            judge(answer)
    parse("0.5")
    data = READER.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                assert isinstance(point, HistogramDataPoint)
                print(metric.name, f"[{metric.unit}]", dict(point.attributes or {}), f"{point.count} calls")
