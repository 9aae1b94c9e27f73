"""Calls of decorated functions as an OpenTelemetry metric."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from qreward.telemetry import names
from qreward.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from qreward.functions.metrics import ScheduleMetrics


class TelemetryExporter:
    """Records each call of a function: ``@schedule(telemetry_exporter=TelemetryExporter())``.

    One histogram, ``qreward.schedule.duration``, in seconds from the call to its end, waiting and retries included. Its attributes are
    ``code.function.name`` and, if the call failed, ``error.type``: ``timeout``, ``circuit_open``, ``cancelled``, or the class of the
    exception. Keys are not told: there may be any number of them. One exporter serves any number of functions.

    Args:
        telemetry: whose meter provider is used; by default the global one, also if it is set later.

    Example:
        >>> from qreward import schedule
        >>> @schedule(retry_times=2, telemetry_exporter=TelemetryExporter())
        ... def score(answer: str) -> float:
        ...     return 1.0
        >>> score("42")
        1.0
    """

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self._instruments = (telemetry or Telemetry()).instruments

    def export(self, metrics: ScheduleMetrics) -> None:
        """Record one call that has ended."""
        instruments = self._instruments
        if not instruments.live(monotonic()):
            return
        point = {names.FUNCTION_NAME: metrics.function}
        if not metrics.ok:
            point[names.ERROR_TYPE] = metrics.error or metrics.outcome if metrics.outcome == "failed" else metrics.outcome
        instruments.schedule_duration.record(metrics.latency, point)
