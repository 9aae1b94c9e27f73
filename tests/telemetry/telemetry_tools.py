"""Exporters in memory, clients that tell them, and the spans and points that they hold, in a form that a table can hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qreward.telemetry import Telemetry

Tree = tuple[str, tuple["Tree", ...]]


class Seen:
    """Providers of its own, and all that was told to them."""

    def __init__(self, **settings: Any) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self._reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **settings)

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, *_: object) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in that order."""
        return list(self._spans.get_finished_spans())

    def span(self, start: str) -> ReadableSpan:
        """The one whose name begins so."""
        (found,) = [span for span in self.spans if span.name.startswith(start)]
        return found

    def attempts(self) -> list[ReadableSpan]:
        """The spans of attempts, by their number."""
        found = [span for span in self.spans if span.name == "attempt"]
        return sorted(found, key=lambda span: attributes(span)["qreward.attempt.number"])

    def metrics(self) -> dict[str, Any]:
        """Name -> the metric, as it stands now."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {metric.name: metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics}

    def points(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """(count of a histogram, or value; attributes) of each point of a metric."""
        metric = self.metrics().get(name)
        found = [] if metric is None else metric.data.data_points
        return [(point.count if hasattr(point, "count") else point.value, dict(point.attributes)) for point in found]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Of a span, never None."""
    return dict(span.attributes or {})


def tree(spans: Iterable[ReadableSpan]) -> list[tuple[Any, ...]]:
    """The roots with all that hangs below them: (name, kind, status, (children by their start)). Parents that are not ours are left out."""
    listed = list(spans)
    known = {span.context.span_id for span in listed if span.context is not None}

    def below(span_id: int | None) -> list[tuple[Any, ...]]:
        of = [each for each in listed if (each.parent.span_id if each.parent and each.parent.span_id in known else None) == span_id]
        return [_node(each, below(each.context.span_id)) for each in sorted(of, key=_place) if each.context is not None]

    return below(None)


def _place(span: ReadableSpan) -> tuple[int, int]:
    return span.start_time or 0, attributes(span).get("qreward.attempt.number", 0)


def _node(span: ReadableSpan, children: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return (span.name, span.kind.name, span.status.status_code.name, tuple(children))
