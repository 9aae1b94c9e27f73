"""Calls of decorated functions as a metric."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from qreward import Telemetry, TelemetryExporter, schedule


def points(reader: InMemoryMetricReader) -> dict[tuple[str, str | None], Any]:
    data = reader.get_metrics_data()
    scopes: list[Any] = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data else []
    found = [metric for scope in scopes for metric in scope.metrics]
    assert {(metric.name, metric.unit) for metric in found} <= {("qreward.schedule.duration", "s")}
    return {
        (str(p.attributes["code.function.name"]), p.attributes.get("error.type")): p for metric in found for p in metric.data.data_points
    }


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
    found = points(reader)
    name = f"{__name__}.test_each_call_is_one_point_with_its_function_and_why_it_failed.<locals>.score"
    counts = {(name, None): 2, (name, "ZeroDivisionError"): 2, (name, "circuit_open"): 1}
    assert {key: point.count for key, point in found.items()} == counts
    assert "sk-secret" not in repr(reader.get_metrics_data())


def test_without_an_sdk_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    @schedule(telemetry_exporter=TelemetryExporter())
    def score() -> int:
        return 1

    assert score() == 1
