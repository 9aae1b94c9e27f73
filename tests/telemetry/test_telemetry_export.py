"""What really leaves the process: OTLP over HTTP to a receiver, decoded by the official messages, and a page that Prometheus scrapes."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from telemetry_server import MODEL, Do, Judges, chat, client_of

from qreward import Hedge, Limits, QRewardError, Retry, ScheduleMetrics, TelemetryExporter
from qreward.telemetry import Telemetry, configure
from qreward.telemetry.telemetry import METRICS
from qreward.testing.virtual_time import run_in_virtual_time

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


class Receiver(BaseHTTPRequestHandler):
    """As a collector takes what it is sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        kind = ExportTraceServiceRequest if self.path == "/v1/traces" else ExportMetricsServiceRequest
        assert self.headers["content-type"] == "application/x-protobuf"
        message = kind()
        message.ParseFromString(body)
        self.server.taken.append(message)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """Its address, and what it has taken."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    taken: list[Any] = []
    server.taken = taken  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def use_all(telemetry: Telemetry, collect: Any = None) -> None:
    """Everything that leaves a point: a retry, a hedge, a stream, an overload, a full queue; ``collect`` is called amid it."""
    script = {"a": [Do(0.1, 500), Do(0.1, 429), Do(0.1, 429), Do(30)], "b": [Do(0.2)]}
    retry = Retry(base=0.01)
    one = Limits(max_concurrency=4)
    settings: dict[str, Any] = {"limits": one, "telemetry": telemetry, "hedge": Hedge(after=1.0), "retry": retry, "max_queued": 1}
    async with client_of(Judges(script), **settings) as client:
        for _ in range(4):
            await client.chat_completion(chat(), MODEL)
        assert [token async for token in client.stream_chat_completion(chat(), MODEL)]
        await client.embeddings("x", "embed-1")
        await client.batch_chat_completion([chat()] * 12, MODEL)
        found = await asyncio.gather(*(client.chat_completion(chat(), MODEL) for _ in range(24)), return_exceptions=True)
        assert any(isinstance(each, QRewardError) for each in found)
        telemetry.instruments.batch_size.record(3, {"gen_ai.request.model": MODEL})  # merged requests have a test of their own
        TelemetryExporter(telemetry).export(ScheduleMetrics("rewards.score", None, "ok", None, False, 1, 0, 0, 0.0, 0.5))
        if collect is not None:
            collect()


def value_of(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def attributes_of(thing: Any) -> dict[str, Any]:
    return {each.key: value_of(each.value) for each in thing.attributes}


def test_a_receiver_of_otlp_gets_spans_and_metrics_with_the_names_units_and_attributes_of_the_conventions() -> None:
    with receiver() as (url, taken):
        telemetry = configure("otlp", endpoint=url, service_name="rewards", interval=3600, everywhere=False)
        run_in_virtual_time(use_all(telemetry, telemetry.flush))
        telemetry.shutdown()
    traces = [each for each in taken if isinstance(each, ExportTraceServiceRequest)]
    metrics = [each for each in taken if isinstance(each, ExportMetricsServiceRequest)]
    check_spans([scope for each in traces for resource in each.resource_spans for scope in resource.scope_spans])
    check_metrics([scope for each in metrics for resource in each.resource_metrics for scope in resource.scope_metrics])
    for each in traces:
        for resource in each.resource_spans:
            assert attributes_of(resource.resource)["service.name"] == "rewards"


def check_spans(scopes: list[Any]) -> None:
    spans = [span for scope in scopes for span in scope.spans]
    assert {(scope.scope.name, scope.schema_url) for scope in scopes} == {("qreward", "https://opentelemetry.io/schemas/1.41.1")}
    calls = [span for span in spans if span.kind == Span.SPAN_KIND_CLIENT]
    attempts = [span for span in spans if span.kind == Span.SPAN_KIND_INTERNAL]
    assert {span.name for span in calls} == {f"chat {MODEL}", "embeddings embed-1"}
    assert {span.name for span in attempts} == {"attempt"}
    assert len(spans) == len(calls) + len(attempts)
    for span in calls:
        found = attributes_of(span)
        assert {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"} <= set(found)
        assert ("error.type" in found) == (span.status.code == Status.STATUS_CODE_ERROR)
        assert ("server.address" in found) <= ("server.port" in found)
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    for span in attempts:
        found = attributes_of(span)
        assert {"qreward.attempt.number", "qreward.attempt.type", "qreward.attempt.outcome", "server.address"} <= set(found)
        assert span.parent_span_id in {call.span_id for call in calls}


NEEDED = {
    "gen_ai.client.operation.duration": {"gen_ai.operation.name", "gen_ai.provider.name"},
    "gen_ai.client.token.usage": {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.token.type"},
    "gen_ai.client.operation.time_to_first_chunk": {"gen_ai.operation.name", "gen_ai.provider.name"},
    "qreward.client.attempt.duration": {"qreward.attempt.type", "qreward.attempt.outcome", "gen_ai.request.model", "server.address"},
    "qreward.client.queue.size": {"qreward.queue.name"},
    "qreward.client.waiting": {"qreward.queue.name", "qreward.waiting.for"},
    "qreward.client.queue.wait_time": {"qreward.queue.name"},
    "qreward.client.queue.rejections": {"qreward.queue.rejection.reason"},
    "qreward.client.active_requests": {"server.address", "server.port", "qreward.endpoint"},
    "qreward.client.concurrency.limit": {"server.address", "server.port", "qreward.endpoint"},
    "qreward.client.endpoint.count": {"qreward.endpoint.state"},
    "qreward.client.batch.size": {"gen_ai.request.model"},
    "qreward.schedule.duration": {"code.function.name"},
}
"""Metric -> attributes that each of its points has."""


def check_metrics(scopes: list[Any]) -> None:
    known = {metric.name: metric for metric in METRICS.values()}
    found = {metric.name: metric for scope in scopes for metric in scope.metrics}
    assert set(found) == set(NEEDED) == set(known)
    for name, metric in found.items():
        assert metric.unit == known[name].unit
        shape = metric.WhichOneof("data")
        assert shape == ("histogram" if known[name].kind == "histogram" else "sum")
        if shape == "sum":
            assert metric.sum.is_monotonic == (known[name].kind == "counter")
        for point in getattr(metric, shape).data_points:
            assert NEEDED[name] <= set(attributes_of(point)), name
            if shape == "histogram":
                assert tuple(point.explicit_bounds) == known[name].buckets


# Prometheus


def scraped() -> str:
    """A page of metrics as Prometheus gets it."""
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader])
    server, thread = start_http_server(0, addr="127.0.0.1")
    pages: list[str] = []

    def scrape() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            pages.append(answer.read().decode())

    try:
        run_in_virtual_time(use_all(Telemetry(meter_provider=provider), scrape))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        provider.shutdown()
    return pages[0]


def prometheus_names(page: str) -> set[str]:
    return set(re.findall(r"^(?!#)([a-z_]+)[{ ]", page, re.MULTILINE))


@pytest.fixture(scope="module")
def page() -> str:
    return scraped()


def test_prometheus_scrapes_every_metric(page: str) -> None:
    found = prometheus_names(page)
    for metric in METRICS.values():
        assert any(name.startswith(metric.name.replace(".", "_")) for name in found), metric.name
    assert re.search(r'^qreward_client_attempt_duration_seconds_count\{.*qreward_attempt_outcome="won".*\} [1-9]', page, re.MULTILINE)
    assert re.search(r'^qreward_client_concurrency_limit\{.*qreward_endpoint="a".*\} [1-9]', page, re.MULTILINE)


def queries(panel: Any) -> Iterator[str]:
    """The expressions of a dashboard, wherever they stand."""
    if isinstance(panel, dict):
        for name, value in panel.items():
            if name in ("expr", "definition"):
                yield value
            else:
                yield from queries(value)
    elif isinstance(panel, list):
        for each in panel:
            yield from queries(each)


def test_the_dashboard_asks_only_for_metrics_and_labels_that_there_are(page: str) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [query for query in queries(dashboard) if "qreward_serve" not in query]  # the server's: tests/examples/test_compose.py
    there, labels = prometheus_names(page), set(re.findall(r'([a-z_]+)="', page))
    assert len(asked) >= 12
    used: set[str] = set()
    for query in asked:
        found = set(re.findall(r"\b((?:qreward|gen_ai)_client_[a-z_]+)", query))
        assert found, query
        assert found <= there, query
        used |= found
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        matched = {label for group in re.findall(r"\{([^}]*)\}", query) for label in re.findall(r"([a-z_]+)\s*[=!]", group)}
        assert (grouped | matched) - {"le"} <= labels, query
    assert len(used) >= 12
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
