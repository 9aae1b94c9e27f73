"""``Telemetry``: what a client records, and its metrics; ``TelemetryExporter`` for ``@schedule``; ``configure``, which sets up the SDK."""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache, partial
from importlib import metadata
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import metrics as meters
from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from qreward.engine import background
from qreward.errors import ConfigError
from qreward.scheduler.source import Source
from qreward.scheduler.why import route_of
from qreward.settings.base import shown

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

    from qreward.functions.function import ScheduleMetrics

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"


@cache
def version() -> str:
    try:
        return metadata.version("qreward")
    except metadata.PackageNotFoundError:  # the library runs from a source directory
        return ""


def is_active(provider: object) -> bool:
    """Return whether a provider records anything. The providers of the API package record nothing until an SDK is set up."""
    return not type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))


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
        ConfigError: an argument has the wrong type, or ``content_length`` is negative.

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
        if capture_content is None:
            capture_content = os.environ.get(CAPTURE_VARIABLE, "").strip().lower() in ("span_only", "span_and_event")
        names = providers or {}
        checks = {
            "tracer_provider": (tracer_provider, tracer_provider is None or hasattr(tracer_provider, "get_tracer"), "a TracerProvider"),
            "meter_provider": (meter_provider, meter_provider is None or hasattr(meter_provider, "get_meter"), "a MeterProvider"),
            "provider": (provider, isinstance(provider, str), "a string"),
            "providers": (
                providers,
                isinstance(names, Mapping) and all(isinstance(each, str) for pair in names.items() for each in pair),
                "a mapping of endpoint names to strings",
            ),
            "propagate": (propagate, isinstance(propagate, bool), "True or False"),
            "capture_content": (capture_content, isinstance(capture_content, bool), "True or False"),
            "content_length": (content_length, type(content_length) is int and content_length >= 0, "a whole number of at least 0"),
        }
        for name, (value, is_right, kind) in checks.items():
            if not is_right:
                raise ConfigError(f"telemetry: {name} must be {kind}, not {shown(value)}")
        self.tracer_provider, self.meter_provider = tracer_provider, meter_provider
        self.provider, self.providers = provider, dict(names)
        self.propagate, self.capture_content, self.content_length = propagate, capture_content, content_length

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
    telemetry = Telemetry(tracer_provider=tracer_provider, meter_provider=meter_provider, **settings)
    if everywhere:
        trace.set_tracer_provider(tracer_provider)
        meters.set_meter_provider(meter_provider)
    return telemetry


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        package = "opentelemetry-sdk" if module.startswith("opentelemetry.sdk") else "opentelemetry-exporter-otlp-proto-http"
        raise ConfigError(f"telemetry: this needs {package}; install it by: pip install 'qreward[otel]' {package}") from None


# Metrics

Attributes = dict[str, Any]

CACHED = 4096
"""Maximum number of objects in each cache of objects that similar calls share."""
_PORTS = {"http": 80, "https": 443}


def known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


class ServerAddress:
    """The attributes of one endpoint at one address: of its server, and of the endpoint with its server."""

    def __init__(self, name: str, url: object) -> None:
        self.name = name
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port or _PORTS.get(parts.scheme)
        self.server = known({"server.address": parts.hostname, "server.port": port}) if parts.hostname else {}
        self.attributes = {"qreward.endpoint": name, **self.server}


_address = lru_cache(CACHED)(ServerAddress)


def address_of(source: Source) -> ServerAddress:
    endpoint = source.endpoint
    return _address(source.name, None if getattr(endpoint, "compute", None) else getattr(endpoint, "base_url", None))


Points = Iterator[tuple[float, Attributes]]
CHECK_INTERVAL = 0.05
"""Minimum number of seconds between two checks whether a provider records anything. Checks are made only when calls are made."""

Kind = Literal["histogram", "counter", "observable_updowncounter"]

# suggested bucket boundaries of histograms
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(4**power for power in range(14))
ITEMS = tuple(2**power for power in range(13))


class Metric(NamedTuple):
    name: str
    kind: Kind
    unit: str
    description: str
    buckets: tuple[float, ...] = ()
    observe: Callable[[Any], Points] = lambda _runtime: iter(())


def _seconds(name: str, description: str) -> Metric:
    return Metric(name, "histogram", "s", description, SECONDS)


def _state(name: str, unit: str, description: str, observe: Callable[[Any], Points]) -> Metric:
    return Metric(name, "observable_updowncounter", unit, description, (), observe)


def _queues(client: Any) -> Points:
    for pool in client.look.pools():
        yield len(pool.queue), {"qreward.queue.name": route_of(pool)}


def _waiting(client: Any) -> Points:
    pools = client.look.pools()
    for pool, why in zip(reversed(pools), reversed(client.look.explain(pools)), strict=False):  # reasons beyond the routes come first
        yield why.waiting, {"qreward.queue.name": route_of(pool), "qreward.waiting.for": why.code}


def _endpoints(client: Any) -> Points:
    found = Counter({"available": 0, "ejected": 0, "probing": 0})
    for source in client.fleet.sources():
        health = source.health
        found["ejected" if not health.in_service else "probing" if health.half_open else "available"] += 1
    for name, count in found.items():
        yield count, {"qreward.endpoint.state": name}


def _inflight(client: Any) -> Points:
    return ((source.inflight, address_of(source).attributes) for source in client.fleet.sources())


def _limits(client: Any) -> Points:
    return ((source.window.limit, address_of(source).attributes) for source in client.fleet.sources())


METRICS = {
    "duration": _seconds("gen_ai.client.operation.duration", "GenAI operation duration."),
    "first_chunk": _seconds("gen_ai.client.operation.time_to_first_chunk", "Time until the first chunk of a streamed answer."),
    "tokens": Metric("gen_ai.client.token.usage", "histogram", "{token}", "Number of input and output tokens used.", TOKENS),
    "attempt_duration": _seconds("qreward.client.attempt.duration", "Duration of one attempt at one endpoint."),
    "queue_size": _state("qreward.client.queue.size", "{request}", "Requests that wait for an endpoint.", _queues),
    "waiting": _state(
        "qreward.client.waiting", "{request}", "Items that have no result and are not in flight, by what they wait for.", _waiting
    ),
    "queue_wait": _seconds("qreward.client.queue.wait_time", "Time of a single call before its first attempt."),
    "queue_rejections": Metric(
        "qreward.client.queue.rejections", "counter", "{request}", "Requests that ended without having been sent: full, deadline, closed."
    ),
    "active_requests": _state("qreward.client.active_requests", "{request}", "Requests in flight at an endpoint.", _inflight),
    "limit": _state("qreward.client.concurrency.limit", "{request}", "Requests that an endpoint may have in flight now.", _limits),
    "endpoint_count": _state("qreward.client.endpoint.count", "{endpoint}", "Endpoints by state: available, ejected, probing.", _endpoints),
    "batch_size": Metric("qreward.client.batch.size", "histogram", "{item}", "Calls that were merged into one request.", ITEMS),
    "schedule_duration": _seconds("qreward.schedule.duration", "Duration of a call of a scheduled function."),
}
"""The metrics by the name that the code uses. Those outside the conventions are called ``qreward.``."""


class Instruments:
    """The instruments of one provider (None: the global one, even if it is set later), as attributes with the keys of ``METRICS``."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._provider = provider
        self._live = False
        self._checked_at = -1.0
        self._clients: WeakSet[Any] = WeakSet()
        meter = meters.get_meter("qreward", version(), provider, SCHEMA_URL)
        self.__dict__.update({key: self._make(meter, metric) for key, metric in METRICS.items()})

    def __getattr__(self, name: str) -> Any:  # for type checkers: the attributes are those of ``METRICS``
        raise AttributeError(name)

    def live(self, now: float) -> bool:
        """Return whether the provider records. It is checked at most every ``CHECK_INTERVAL`` seconds, until it does."""
        if not self._live and not 0 <= now - self._checked_at < CHECK_INTERVAL:
            self._checked_at = now
            self._live = is_active(self._provider or meters.get_meter_provider())
        return self._live

    def observe(self, client: Any) -> None:
        with _lock:
            self._clients.add(client)

    def _make(self, meter: meters.Meter, metric: Metric) -> Any:
        name, kind, unit, description, buckets, observe = metric
        if kind == "histogram":
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=list(buckets))
        if kind == "counter":
            return meter.create_counter(name, unit, description)
        return meter.create_observable_up_down_counter(name, [partial(self._observe, observe)], unit, description)

    def _observe(self, observe: Callable[[Any], Points], _options: CallbackOptions) -> Iterable[Observation]:
        sums: dict[tuple[tuple[str, Any], ...], float] = {}
        with _lock:
            clients = [client for client in self._clients if not client.engine.closed]
        for client in clients:
            for value, attributes in observe(client):
                point = tuple(sorted(attributes.items()))
                sums[point] = sums.get(point, 0) + value
        return [Observation(value, dict(point)) for point, value in sums.items() if isfinite(value)]


_lock = threading.Lock()
_of_provider: WeakKeyDictionary[object, Instruments] = WeakKeyDictionary()


def instruments_of(provider: MeterProvider | None) -> Instruments:
    key: object = provider or Instruments  # the global provider may be set later
    with _lock:
        if key not in _of_provider:
            _of_provider[key] = Instruments(provider)
        return _of_provider[key]


def _after_fork(_: object) -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have held the old lock
    _lock = threading.Lock()


background.watch(Instruments, _after_fork)
