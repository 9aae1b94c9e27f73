"""Record calls of a client as OpenTelemetry spans, metrics and events.

Telemetry only observes the engine. It makes no decisions, and its failures never fail a call. It imports ``opentelemetry-api``, which does
nothing until the program sets up an SDK. :func:`configure` sets one up in one line. All names are in ``names``.
"""

from __future__ import annotations

from qreward.telemetry.configure import configure
from qreward.telemetry.telemetry import Telemetry, TelemetryExporter

__all__ = ["Telemetry", "TelemetryExporter", "configure"]
