"""What OpenTelemetry sees of calls that share a request: a span for each, and one for the request that links to them."""

from __future__ import annotations

import asyncio
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span

from qreward import Limits, QRewardClient, RewardModel, Telemetry
from qreward.testing import FakeEndpoint, FakeFleet, Latency

MODEL = "rm-7b"
FAKE = FakeEndpoint("gpu-0", models=["rm-*"], kind="vllm", max_concurrency=1, latency=Latency(base=0.05))


async def score_at_once(telemetry: Telemetry, provider: TracerProvider) -> list[Span]:
    """Six scores that share a request; returns their callers' spans."""
    tracer = provider.get_tracer("test")
    callers: list[Span] = []

    async def caller(client: QRewardClient, answer: str) -> None:
        with tracer.start_as_current_span(f"rollout {answer}") as span:
            await client.score("6 x 7?", answer, model=MODEL)
        callers.append(span)

    async with FakeFleet([FAKE]) as fleet:
        update = {"reward": RewardModel(template="{prompt}{response}"), "limits": Limits(max_concurrency=1)}
        async with QRewardClient([each.model_copy(update=update) for each in fleet.endpoints], telemetry=telemetry) as client:
            await asyncio.gather(*(caller(client, str(number)) for number in range(6)))
    return callers


def test_each_call_hangs_below_its_caller_and_the_request_links_to_all_and_alone_tells_what_was_used() -> None:
    spans, reader, provider = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry(tracer_provider=provider, meter_provider=MeterProvider([reader]))
    callers = asyncio.run(score_at_once(telemetry, provider))
    found: dict[str, list[Any]] = {}
    for span in spans.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    calls, (request,) = found[f"score {MODEL}"], found[f"batch {MODEL}"]
    assert {call.parent.span_id for call in calls} == {caller.get_span_context().span_id for caller in callers}
    assert {link.context.span_id for link in request.links} == {call.context.span_id for call in calls}
    assert request.attributes["qreward.batch.size"] == 6
    assert request.attributes["gen_ai.usage.input_tokens"] > 0
    assert not any("gen_ai.usage.input_tokens" in call.attributes for call in calls)
    assert counts(reader) == {"gen_ai.client.operation.duration": 6, "qreward.client.batch.size": 1, "qreward.client.attempt.duration": 1}


def counts(reader: InMemoryMetricReader) -> dict[str, int]:
    """How often the metrics in question were recorded."""
    data = reader.get_metrics_data()
    scopes: list[Any] = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data else []
    found = [metric for scope in scopes for metric in scope.metrics]
    wanted = {"gen_ai.client.operation.duration", "qreward.client.batch.size", "qreward.client.attempt.duration"}
    return {metric.name: sum(point.count for point in metric.data.data_points) for metric in found if metric.name in wanted}
