"""OpenTelemetry spans and metrics of a client: a span for each call, with its attempts below it if there was more than one.

Run it: ``python examples/client_telemetry.py``.
"""

from __future__ import annotations

import asyncio

from connect import MODEL, connect, conversation
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qreward.testing import FakeEndpoint, Faults, Latency

QUICK = Latency(base=0.02, tokens=20)
FAULTY = FakeEndpoint("gpu-0", responder="judge", latency=QUICK, faults=Faults(error_500=1.0))
STEADY = FakeEndpoint("gpu-1", responder="judge", latency=QUICK)
MESSAGES = conversation("What is the capital of Finland?", reference="Helsinki", candidate="helsinki")
SHOWN = ("qreward.attempt.type", "qreward.attempt.outcome", "qreward.endpoint", "error.type", "gen_ai.usage.output_tokens")


async def main() -> None:
    # This program keeps spans and metrics in memory, to print them; qreward.telemetry.configure() sends them to a collector.
    spans, reader, provider = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    with trace.get_tracer("example").start_as_current_span("rollout 7"):
        async with connect(FAULTY, STEADY) as client:
            for _ in range(3):
                await client.chat_completion(MESSAGES, model=MODEL, temperature=0)
            show_metrics(reader)
    show_spans(spans)


def show_spans(exporter: InMemorySpanExporter, parent: int | None = None, depth: int = 0) -> None:
    for span in sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent and span.context is not None:
            shown = [str((span.attributes or {}).get(name)) for name in SHOWN if name in (span.attributes or {})]
            print("  " * depth + span.name, *shown)
            show_spans(exporter, span.context.span_id, depth + 1)


def show_metrics(reader: InMemoryMetricReader) -> None:
    data = reader.get_metrics_data()
    found = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics] if data else []
    print(*sorted(f"{metric.name} [{metric.unit}] {len(metric.data.data_points)} points" for metric in found), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
