"""Records calls of a client with OpenTelemetry. It only observes the engine, and an error in telemetry never makes a call fail."""

from __future__ import annotations

from qreward.telemetry.telemetry import Telemetry, TelemetryExporter, configure

__all__ = ["Telemetry", "TelemetryExporter", "configure"]
