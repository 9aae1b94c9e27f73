"""``Telemetry``: what a client records; ``TelemetryExporter`` for ``@schedule``; ``configure``, which sets up the SDK."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import metrics as meters
from opentelemetry import trace

from qreward.errors import ConfigError
from qreward.settings.base import shown
from qreward.telemetry.metrics import SCHEMA_URL, Instruments, instruments_of, is_active, version

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from qreward.functions.function import ScheduleMetrics

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Telemetry:
    """The OpenTelemetry settings of a client: ``QRewardClient(..., telemetry=Telemetry(...))``.

    By default, a client records to the program's global providers, even if they are set up later. Without an SDK, this costs about 2 us per
    call. ``telemetry=None`` disables telemetry. ``NoOpTracerProvider()`` disables only spans, and ``NoOpMeterProvider()`` disables only
    metrics. Several clients may share one ``Telemetry``.

    Args:
        tracer_provider, meter_provider: the providers to use. The default is the global providers.
        provider: value of ``gen_ai.provider.name``, which names the kind of API.
        providers: name of an endpoint -> value of ``gen_ai.provider.name`` for this endpoint.
        propagate: whether ``traceparent`` and all other headers of the program's propagators are sent with each attempt.
        capture_content: whether messages are recorded on the spans of calls. The default is True if the environment variable
            ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` is ``span_only`` or ``span_and_event``.
        content_length: maximum number of characters of one text that are recorded.

    Raises:
        ConfigError: ``capture_content`` is not True, False or None.

    Example:
        >>> from opentelemetry.trace import NoOpTracerProvider
        >>> Telemetry(tracer_provider=NoOpTracerProvider(), provider="vllm").provider
        'vllm'
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        provider: str = "openai",
        providers: Mapping[str, str] | None = None,
        propagate: bool = True,
        capture_content: bool | None = None,
        content_length: int = 4096,
    ) -> None:
        self.tracer_provider, self.meter_provider = tracer_provider, meter_provider
        self.provider, self.providers = provider, dict(providers or {})
        self.propagate = propagate
        if capture_content is None:
            capture_content = os.environ.get(CAPTURE_VARIABLE, "").strip().lower() in ("span_only", "span_and_event")
        if not isinstance(capture_content, bool):
            raise ConfigError(f"telemetry: capture_content must be True or False, not {shown(capture_content)}")
        self.capture_content = capture_content
        self.content_length = content_length

    @cached_property
    def tracer(self) -> Tracer:
        return trace.get_tracer("qreward", version(), self.tracer_provider, SCHEMA_URL)

    @cached_property
    def instruments(self) -> Instruments:
        return instruments_of(self.meter_provider)

    def flush(self) -> None:
        """Flush the providers that were passed in."""
        self._each("force_flush")

    def shutdown(self) -> None:
        """Flush and shut down the providers that were passed in."""
        self._each("shutdown")

    def _each(self, action: str) -> None:
        for provider in (self.tracer_provider, self.meter_provider):
            getattr(provider, action, lambda: None)()

    def __reduce__(self) -> tuple[Any, ...]:
        # without the providers: the process that unpickles them uses its own global ones
        kept = ("provider", "providers", "propagate", "capture_content", "content_length")
        return partial(Telemetry, **{name: getattr(self, name) for name in kept}), ()

    def __repr__(self) -> str:
        return f"<Telemetry {'own' if self.tracer_provider or self.meter_provider else 'global'} providers>"


class TelemetryExporter:
    """Records each call of a function: ``@schedule(telemetry_exporter=TelemetryExporter())``.

    It records one histogram, ``qreward.schedule.duration``: seconds from the call to its end, including waiting and retries, with the
    attributes ``code.function.name`` and, if the call failed, ``error.type``. One exporter can serve any number of functions.

    Args:
        telemetry: the settings with the meter provider to use. The default is the global provider, even if it is set later.

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
        point = {"code.function.name": metrics.function}
        if not metrics.ok:
            point["error.type"] = metrics.error or metrics.outcome if metrics.outcome == "failed" else metrics.outcome
        instruments.schedule_duration.record(metrics.latency, point)


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
    for kind, provider in (("tracer", trace.get_tracer_provider()), ("meter", meters.get_meter_provider())) if everywhere else ():
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
        meters.set_meter_provider(meter_provider)
    return Telemetry(tracer_provider=tracer_provider, meter_provider=meter_provider, **settings)


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        package = "opentelemetry-sdk" if module.startswith("opentelemetry.sdk") else "opentelemetry-exporter-otlp-proto-http"
        raise ConfigError(f"telemetry: this needs {package}; install it by: pip install 'qreward[otel]' {package}") from None
