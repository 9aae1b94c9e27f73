"""Calls of decorated functions as a metric."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from qreward import Telemetry, TelemetryExporter, schedule


def test_each_call_is_one_point_with_its_function_and_why_it_failed() -> None:
    reader = InMemoryMetricReader()
    exporter = TelemetryExporter(Telemetry(meter_provider=MeterProvider([reader])))

    @schedule(telemetry_exporter=exporter, circuit_breaker_threshold=2, key_func=lambda _, secret: secret)
    def score(number: int, secret: str) -> float:
        return 1 / number

    for number in (1, 2, 0, 0, 0):
        try:
            score(number, "sk-secret")
        except Exception:
            assert not number
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.unit) == ("qreward.schedule.duration", "s")
    points: list[Any] = list(metric.data.data_points)
    assert {point.attributes["code.function.name"].rpartition(".")[2] for point in points} == {"score"}
    counts = {None: 2, "ZeroDivisionError": 2, "circuit_open": 1}
    assert {point.attributes.get("error.type"): point.count for point in points} == counts
    assert "sk-secret" not in repr(data)
    with_no_sdk = schedule(telemetry_exporter=TelemetryExporter())(lambda: 1)
    assert with_no_sdk() == 1
