"""``Telemetry``, the settings of a client's telemetry, and ``TelemetryExporter`` for ``@schedule``.

``Telemetry`` contains the settings: what is recorded, and by which providers. ``spans.CallWatcher`` records the calls.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, get_args

from opentelemetry import trace

from qreward.errors import ConfigError
from qreward.telemetry import names
from qreward.telemetry.content import CAPTURE_VARIABLE, EVENT_VARIABLE, Capture, Content
from qreward.telemetry.metrics import Instruments, Read, instruments_of
from qreward.telemetry.names import Dialect

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from qreward.functions.function import ScheduleMetrics

Attempts = Literal["auto", "always", "never"]

OPT_IN_VARIABLE, LATEST = "OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental"


class Telemetry:
    """The OpenTelemetry settings of a client: ``QRewardClient(..., telemetry=Telemetry(...))``.

    By default, a client records to the program's global providers, even if they are set up later. Without an SDK, this costs about 2 us per
    call. ``telemetry=None`` disables telemetry. ``NoOpTracerProvider()`` disables only spans, and ``NoOpMeterProvider()`` disables only
    metrics. Several clients may share one ``Telemetry``.

    Args:
        tracer_provider, meter_provider, logger_provider: the providers to use. The default is the global providers.
        semconv: version of the semantic conventions, ``v1.41`` or ``latest``. The default is ``latest`` if
            ``OTEL_SEMCONV_STABILITY_OPT_IN`` contains ``gen_ai_latest_experimental``, and otherwise ``v1.41``.
        attempts: attempts that get spans. ``always`` means all attempts, and ``never`` means none. ``auto`` means the attempts of calls
            that were sent more than once or did not succeed.
        provider: value of ``gen_ai.provider.name``, which names the kind of API.
        providers: name of an endpoint -> value of ``gen_ai.provider.name`` for this endpoint.
        propagate: whether ``traceparent`` and all other headers of the program's propagators are sent with each attempt.
        chunks: whether the time between the chunks of streams is also recorded (about 8 us per chunk).
        capture_content: where messages are recorded: ``span_only``, ``event_only``, ``span_and_event`` or ``no_content``. The default is
            the value of ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``. If the variable is not set or invalid, the default is
            ``no_content``.
        content_length: maximum number of characters of one text that are recorded.

    Raises:
        ConfigError: ``semconv``, ``attempts`` or ``capture_content`` is invalid.

    Example:
        >>> from opentelemetry.trace import NoOpTracerProvider
        >>> Telemetry(tracer_provider=NoOpTracerProvider(), attempts="always").attempts
        'always'
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        semconv: Dialect | None = None,
        attempts: Attempts = "auto",
        provider: str = "openai",
        providers: Mapping[str, str] | None = None,
        propagate: bool = True,
        chunks: bool = False,
        capture_content: Capture | None = None,
        content_length: int = 4096,
    ) -> None:
        self.tracer_provider, self.meter_provider, self.logger_provider = tracer_provider, meter_provider, logger_provider
        self.semconv = _one_of("semconv", semconv or _dialect(os.environ), get_args(Dialect))
        self.attempts = _one_of("attempts", attempts, get_args(Attempts))
        self.provider, self.providers = provider, dict(providers or {})
        self.propagate, self.chunks = propagate, chunks
        if capture_content is None:
            variable = os.environ.get(CAPTURE_VARIABLE, "").strip().lower()
            capture_content = next((capture for capture in get_args(Capture) if capture == variable), "no_content")
        self.capture_content = _one_of("capture_content", capture_content, get_args(Capture))
        self.content_length = content_length

    @cached_property
    def tracer(self) -> Tracer:
        """The tracer of this library."""
        return trace.get_tracer(names.SCOPE, names.version(), self.tracer_provider, names.SCHEMA_URLS[self.semconv])

    @cached_property
    def instruments(self) -> Instruments:
        """The metric instruments of the meter provider."""
        return instruments_of(self.meter_provider, self.semconv)

    @cached_property
    def content(self) -> Content:
        """The recorder of messages and events."""
        events = os.environ.get(EVENT_VARIABLE, "").strip().lower() == "true"
        return Content(
            self.capture_content, events=events, longest=self.content_length, provider=self.logger_provider, dialect=self.semconv
        )

    def observe(self, client: object, read: Read) -> None:
        """Report the state of a client whenever metrics are collected. Only a weak reference to the client is kept."""
        self.instruments.observe(client, read)

    def flush(self) -> None:
        """Flush the providers that were passed in. Global providers are not affected."""
        self._each("force_flush")

    def shutdown(self) -> None:
        """Flush and shut down the providers that were passed in. Global providers are not affected."""
        self._each("shutdown")

    def _each(self, action: str) -> None:
        for provider in (self.tracer_provider, self.meter_provider, self.logger_provider):
            act = getattr(provider, action, None)
            if act is not None:
                act()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings without the providers. The process that unpickles them uses its own global providers."""
        kept = ("semconv", "attempts", "provider", "providers", "propagate", "chunks", "capture_content", "content_length")
        return _rebuilt, ({name: getattr(self, name) for name in kept},)

    def __repr__(self) -> str:
        own = "own" if self.tracer_provider or self.meter_provider else "global"
        return f"<Telemetry {self.semconv}, attempts={self.attempts!r}, {own} providers>"


def _rebuilt(settings: dict[str, Any]) -> Telemetry:
    return Telemetry(**settings)


def _dialect(environ: Mapping[str, str]) -> Dialect:
    listed = {each.strip() for each in environ.get(OPT_IN_VARIABLE, "").split(",")}
    return "latest" if LATEST in listed else "v1.41"


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ConfigError(f"telemetry: {name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value


class TelemetryExporter:
    """Records each call of a function: ``@schedule(telemetry_exporter=TelemetryExporter())``.

    The exporter records one histogram, ``qreward.schedule.duration``. Its values are the seconds from the call to its end, including
    waiting and retries. Its attributes are ``code.function.name`` and, if the call failed, ``error.type``. The value of ``error.type`` is
    ``timeout``, ``circuit_open``, ``cancelled``, or the class of the exception. Keys are not recorded, because their number is unbounded.
    One exporter can serve any number of functions.

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
        point = {names.FUNCTION_NAME: metrics.function}
        if not metrics.ok:
            point[names.ERROR_TYPE] = metrics.error or metrics.outcome if metrics.outcome == "failed" else metrics.outcome
        instruments.schedule_duration.record(metrics.latency, point)
