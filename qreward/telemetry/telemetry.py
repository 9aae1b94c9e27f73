"""``Telemetry``: what is recorded, and by whose providers. Settings only; ``calls`` does the watching.

Calls of decorated functions as an OpenTelemetry metric.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, get_args

from opentelemetry import trace

from qreward.errors import ConfigError
from qreward.telemetry import content, names
from qreward.telemetry.content import CAPTURE_VARIABLE, EVENT_VARIABLE, Capture, Content, capture_of
from qreward.telemetry.metrics import Instruments, Read, instruments_of
from qreward.telemetry.names import Dialect
from qreward.telemetry.spans import SCOPE, version

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from qreward.functions.metrics import ScheduleMetrics
    from qreward.telemetry.spans import CallWatcher

Attempts = Literal["auto", "always", "never"]

OPT_IN_VARIABLE, LATEST = "OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental"


class Telemetry:
    """How a client tells OpenTelemetry what it does: ``QRewardClient(..., telemetry=Telemetry(...))``; ``telemetry=None`` tells nothing.

    A client tells the program's global providers by default, whenever they are set up; without an SDK that costs some 2 us a call.
    ``NoOpTracerProvider()`` or ``NoOpMeterProvider()`` switch spans or metrics off. One may be shared by several clients.

    Args:
        tracer_provider, meter_provider, logger_provider: the program's own; by default the global ones.
        semconv: dialect of the names, ``v1.41`` or ``latest``; by default ``v1.41``, unless ``OTEL_SEMCONV_STABILITY_OPT_IN`` holds
            ``gen_ai_latest_experimental``.
        attempts: spans for attempts: ``always``, ``never``, or ``auto``, where a call was sent more than once, or did not succeed.
        provider: ``gen_ai.provider.name``, the flavour of the API.
        providers: endpoint name -> the same, for those that have another.
        propagate: send ``traceparent`` and what else the program's propagators write along with each attempt.
        chunks: record the time between the chunks of streams, too (some 8 us a chunk).
        capture_content: messages on spans, events or both: ``span_only``, ``event_only``, ``span_and_event``, ``no_content``; by default
            what ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` says, which is none.
        content_length: characters of one text that are captured.

    Raises:
        ConfigError: a setting is not one of its values.

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
        capture = capture_of(os.environ.get(CAPTURE_VARIABLE, "")) if capture_content is None else capture_content
        self.capture_content = _one_of("capture_content", capture, content.CAPTURES)
        self.content_length = content_length

    @cached_property
    def tracer(self) -> Tracer:
        """Ours."""
        return trace.get_tracer(SCOPE, version(), self.tracer_provider, names.SCHEMA_URLS[self.semconv])

    @cached_property
    def instruments(self) -> Instruments:
        """Those of the meter provider."""
        return instruments_of(self.meter_provider, self.semconv)

    @cached_property
    def content(self) -> Content:
        """What is told of messages."""
        events = os.environ.get(EVENT_VARIABLE, "").strip().lower() == "true"
        return Content(
            self.capture_content, events=events, longest=self.content_length, provider=self.logger_provider, dialect=self.semconv
        )

    @cached_property
    def watcher(self) -> CallWatcher:
        """What the engine of a client is given."""
        from qreward.telemetry.spans import CallWatcher  # noqa: PLC0415 - it is made from this

        return CallWatcher(self)

    def observe(self, client: object, read: Read) -> None:
        """Show the state of a client whenever metrics are collected, as long as it lives; it is held weakly."""
        self.instruments.observe(client, read)

    def flush(self) -> None:
        """Send what its own providers hold; global ones are left alone."""
        self._each("force_flush")

    def shutdown(self) -> None:
        """Send what its own providers hold, and end them; global ones are left alone."""
        self._each("shutdown")

    def _each(self, action: str) -> None:
        for provider in (self.tracer_provider, self.meter_provider, self.logger_provider):
            act = getattr(provider, action, None)
            if act is not None:
                act()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by its plain settings: providers belong to a process, which uses its global ones."""
        kept = ("semconv", "attempts", "provider", "providers", "propagate", "chunks", "capture_content", "content_length")
        return _rebuilt, ({name: getattr(self, name) for name in kept},)

    def __repr__(self) -> str:
        own = "own" if self.tracer_provider or self.meter_provider else "global"
        return f"<Telemetry {self.semconv}, attempts={self.attempts!r}, {own} providers>"


def default() -> Telemetry:
    """The one for clients that are given none, as the environment says now."""
    return Telemetry()


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
