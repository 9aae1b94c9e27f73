"""``configure`` sets up the OpenTelemetry SDK for programs that do not set it up themselves. Only this module imports the SDK."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from opentelemetry import metrics, trace

from qreward.errors import ConfigError
from qreward.telemetry.metrics import is_active
from qreward.telemetry.telemetry import Telemetry

Exporter = Literal["otlp", "console"]

_EXPORTERS = {
    "otlp": ("opentelemetry.exporter.otlp.proto.http", "trace_exporter.OTLPSpanExporter", "metric_exporter.OTLPMetricExporter"),
    "console": ("opentelemetry.sdk", "trace.export.ConsoleSpanExporter", "metrics.export.ConsoleMetricExporter"),
}


def configure(
    exporter: Exporter = "otlp",
    *,
    endpoint: str | None = None,
    service_name: str | None = None,
    interval: float = 15.0,
    everywhere: bool = True,
    **settings: Any,
) -> Telemetry:
    """Set up the OpenTelemetry SDK, which exports spans in batches, metrics at intervals, and the rest when the process ends.

    Args:
        exporter: ``otlp`` (over HTTP) or ``console``.
        endpoint: base URL of an OTLP receiver, such as ``http://127.0.0.1:4318``, instead of ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        service_name: ``service.name`` of the resource. The default is the value of ``OTEL_SERVICE_NAME``.
        interval: seconds between two exports of metrics.
        everywhere: whether these providers become the global providers of the program.
        settings: further arguments of :class:`Telemetry`.

    Returns:
        A ``Telemetry`` with these providers. With ``everywhere``, it need not be passed to a client.

    Raises:
        ConfigError: an argument is invalid, a package is missing, or global providers are already set.

    Example:
        >>> from qreward.telemetry import configure
        >>> telemetry = configure("console", everywhere=False)
        >>> telemetry.shutdown()
    """
    if exporter not in _EXPORTERS:
        raise ConfigError(f"telemetry: exporter must be 'otlp' or 'console', not {exporter!r}")
    for kind, provider in (("tracer", trace.get_tracer_provider()), ("meter", metrics.get_meter_provider())) if everywhere else ():
        if is_active(provider):
            raise ConfigError(
                f"telemetry: a global {kind} provider is already set, and clients use it; remove configure(), or pass everywhere=False"
            )
    sdk = "opentelemetry.sdk"
    resource = _imported(f"{sdk}.resources.Resource").create({"service.name": service_name} if service_name else {})
    package, *kinds = _EXPORTERS[exporter]
    paths = ("traces", "metrics")
    urls = [() if endpoint is None or exporter == "console" else (f"{endpoint.rstrip('/')}/v1/{path}",) for path in paths]
    spans, points = (_imported(f"{package}.{kind}")(*url) for kind, url in zip(kinds, urls, strict=True))
    tracer_provider = _imported(f"{sdk}.trace.TracerProvider")(resource=resource)
    tracer_provider.add_span_processor(_imported(f"{sdk}.trace.export.BatchSpanProcessor")(spans))
    reader = _imported(f"{sdk}.metrics.export.PeriodicExportingMetricReader")(points, export_interval_millis=1000 * interval)
    meter_provider = _imported(f"{sdk}.metrics.MeterProvider")([reader], resource=resource)
    if everywhere:
        trace.set_tracer_provider(tracer_provider)
        metrics.set_meter_provider(meter_provider)
    return Telemetry(tracer_provider=tracer_provider, meter_provider=meter_provider, **settings)


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        package = "opentelemetry-sdk" if module.startswith("opentelemetry.sdk") else "opentelemetry-exporter-otlp-proto-http"
        raise ConfigError(f"telemetry: this needs {package}; install it by: pip install 'qreward[otel]' {package}") from None
