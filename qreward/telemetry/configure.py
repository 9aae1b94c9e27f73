"""``configure`` sets up the OpenTelemetry SDK for programs that do not set it up themselves. The only module that imports the SDK."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from opentelemetry import metrics, trace

from qreward.errors import ConfigError
from qreward.telemetry.telemetry import Telemetry

Exporter = Literal["otlp", "console"]

_PACKAGES = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
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
    """Set up the OpenTelemetry SDK. Spans are exported in batches, metrics at intervals, and the rest when the process ends.

    Args:
        exporter: ``otlp`` (over HTTP) or ``console``.
        endpoint: base URL of an OTLP receiver, such as ``http://127.0.0.1:4318``. By default the value of
            ``OTEL_EXPORTER_OTLP_ENDPOINT``. Headers and timeouts are set by the other ``OTEL_EXPORTER_OTLP_*`` variables.
        service_name: ``service.name`` of the resource. By default the value of ``OTEL_SERVICE_NAME``.
        interval: seconds between two exports of metrics.
        everywhere: make these the program's global providers, which every client and every other library uses.
        settings: the other arguments of :class:`Telemetry`.

    Returns:
        A ``Telemetry`` with these providers. With ``everywhere`` there is no need to pass it to a client.

    Raises:
        ConfigError: an argument is invalid, a package is missing (the message contains the command that installs it), or global providers
            are already set.

    Example:
        >>> from qreward.telemetry import configure
        >>> telemetry = configure("console", everywhere=False)
        >>> telemetry.shutdown()
    """
    if exporter not in ("otlp", "console"):
        raise ConfigError(f"telemetry: exporter must be 'otlp' or 'console', not {exporter!r}")
    if everywhere:
        _refuse_second()
    resource = _sdk("opentelemetry.sdk.resources").Resource.create({"service.name": service_name} if service_name else {})
    spans, points = _otlp(endpoint) if exporter == "otlp" else _console()
    tracer_provider = _sdk("opentelemetry.sdk.trace").TracerProvider(resource=resource)
    tracer_provider.add_span_processor(_sdk("opentelemetry.sdk.trace.export").BatchSpanProcessor(spans))
    reader = _sdk("opentelemetry.sdk.metrics.export").PeriodicExportingMetricReader(points, export_interval_millis=1000 * interval)
    meter_provider = _sdk("opentelemetry.sdk.metrics").MeterProvider([reader], resource=resource)
    if everywhere:
        trace.set_tracer_provider(tracer_provider)
        metrics.set_meter_provider(meter_provider)
    return Telemetry(tracer_provider=tracer_provider, meter_provider=meter_provider, **settings)


def _otlp(endpoint: str | None) -> tuple[Any, Any]:
    home = "opentelemetry.exporter.otlp.proto.http"
    root = None if endpoint is None else endpoint.rstrip("/")
    spans, points = (None, None) if root is None else (f"{root}/v1/traces", f"{root}/v1/metrics")
    return _sdk(f"{home}.trace_exporter").OTLPSpanExporter(spans), _sdk(f"{home}.metric_exporter").OTLPMetricExporter(points)


def _console() -> tuple[Any, Any]:
    return _sdk("opentelemetry.sdk.trace.export").ConsoleSpanExporter(), _sdk("opentelemetry.sdk.metrics.export").ConsoleMetricExporter()


def _sdk(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = next(package for prefix, package in _PACKAGES.items() if module.startswith(prefix))
        raise ConfigError(f"telemetry: this needs {package}; install it by: pip install 'qreward[otel]' {package}") from None


def _refuse_second() -> None:
    for kind, provider in (("tracer", trace.get_tracer_provider()), ("meter", metrics.get_meter_provider())):
        if not type(provider).__module__.startswith(f"opentelemetry.{'trace' if kind == 'tracer' else 'metrics'}"):
            raise ConfigError(
                f"telemetry: a global {kind} provider is already set, and clients use it; remove configure(), or pass everywhere=False"
            )
