"""Telemetry: what a client does as OpenTelemetry spans, metrics and events.

An observer of the engine and nothing more: it decides nothing, and no call fails because of it. It imports ``opentelemetry-api``, which
does nothing until a program sets up an SDK; :func:`configure` does that in one line, for those who want it. Every name is in ``names``.
"""

from __future__ import annotations

from qreward.telemetry.configure import configure
from qreward.telemetry.telemetry import Telemetry, TelemetryExporter

__all__ = ["Telemetry", "TelemetryExporter", "configure"]
