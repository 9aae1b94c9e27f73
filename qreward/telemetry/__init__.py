"""Record calls of a client as OpenTelemetry spans, metrics and events.

Telemetry only observes the engine. It makes no decisions, and an error in telemetry never makes a call fail. This package
imports ``opentelemetry-api``, which does nothing until the program sets up an SDK. :func:`configure` sets up an SDK in one line. The module
``names`` defines all names of spans, attributes, events and metrics.
"""

from __future__ import annotations

from qreward.telemetry.configure import configure
from qreward.telemetry.telemetry import Telemetry, TelemetryExporter

__all__ = ["Telemetry", "TelemetryExporter", "configure"]
