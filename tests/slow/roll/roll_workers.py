"""Our worker with eyes: it lives in the actor's process, and tells of spans and of itself."""

from __future__ import annotations

import os
import threading
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from roll.distributed.scheduler.decorator import Dispatch, register

from qreward.integrations.roll import JudgeRewardWorker


class ObservedWorker(JudgeRewardWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config: Any) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace.set_tracer_provider(provider)
        super().initialize(pipeline_config)

    def spans(self) -> list[tuple[str, str, int, int]]:
        """Name, kind, trace and parent of each span that has ended."""
        return [
            (span.name, span.kind.name, span.context.trace_id, span.parent.span_id if span.parent else 0)
            for span in self.exporter.get_finished_spans()
        ]

    def about(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "threads": sorted(thread.name for thread in threading.enumerate())}
