"""The metrics, and their instruments of one meter provider, which are created once and shared by all clients that use the provider."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib import metadata
from math import isfinite
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from qreward.engine import background
from qreward.engine.snapshots import ClientState
from qreward.telemetry.attributes import address_of

CHECK_INTERVAL = 0.05
"""Minimum number of seconds between two checks whether a provider records anything. Checks are made only when calls are made."""

Kind = Literal["histogram", "counter", "observable_counter", "observable_updowncounter", "observable_gauge"]

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Suggested bucket boundaries of histograms of durations."""
TOKENS = tuple(4**power for power in range(14))
"""Suggested bucket boundaries of histograms of token counts."""
ITEMS = tuple(2**power for power in range(13))
"""Suggested bucket boundaries of histograms of item counts."""


class Metric(NamedTuple):
    """One instrument: its name, kind, unit, description and bucket boundaries."""

    name: str
    kind: Kind
    unit: str
    description: str
    buckets: tuple[float, ...] = ()


def _seconds(name: str, description: str) -> Metric:
    return Metric(name, "histogram", "s", description, SECONDS)


def _state(name: str, unit: str, description: str) -> Metric:
    return Metric(name, "observable_updowncounter", unit, description)


METRICS = {
    "duration": _seconds("gen_ai.client.operation.duration", "GenAI operation duration."),
    "first_chunk": _seconds("gen_ai.client.operation.time_to_first_chunk", "Time until the first chunk of a streamed answer."),
    "per_chunk": _seconds("gen_ai.client.operation.time_per_output_chunk", "Time between chunks of a streamed answer."),
    "tokens": Metric("gen_ai.client.token.usage", "histogram", "{token}", "Number of input and output tokens used.", TOKENS),
    "attempt_duration": _seconds("qreward.client.attempt.duration", "Duration of one attempt at one endpoint."),
    "retry_delay": _seconds("qreward.client.call.retry_delay", "Time in which a call that was retried had no attempt in flight."),
    "queue_size": _state("qreward.client.queue.size", "{request}", "Requests that wait for an endpoint."),
    "queue_capacity": _state(
        "qreward.client.queue.capacity", "{request}", "Maximum number of single requests that may wait, if there is a limit."
    ),
    "waiting": _state("qreward.client.waiting", "{request}", "Items that have no result and are not in flight, by what they wait for."),
    "queue_wait": _seconds("qreward.client.queue.wait_time", "Time of a single call before its first attempt."),
    "queue_rejections": Metric(
        "qreward.client.queue.rejections", "counter", "{request}", "Requests that ended without having been sent: full, deadline, closed."
    ),
    "active_requests": _state("qreward.client.active_requests", "{request}", "Requests in flight at an endpoint."),
    "limit": _state("qreward.client.concurrency.limit", "{request}", "Requests that an endpoint may have in flight now."),
    "limit_changes": Metric(
        "qreward.client.concurrency.limit.changes",
        "observable_counter",
        "{change}",
        "Changes of qreward.client.concurrency.limit, by direction and reason.",
    ),
    "rate_limit_wait": _seconds(
        "qreward.client.rate_limit.wait_time", "Time in which no requests are sent to an endpoint that rejected one."
    ),
    "endpoint_count": _state("qreward.client.endpoint.count", "{endpoint}", "Endpoints by state: available, ejected, probing."),
    "hedge_budget": Metric("qreward.client.hedge.budget", "observable_gauge", "{attempt}", "Hedges that the budget allows now."),
    "batch_size": Metric("qreward.client.batch.size", "histogram", "{item}", "Calls that were merged into one request.", ITEMS),
    "schedule_duration": _seconds("qreward.schedule.duration", "Duration of a call of a scheduled function."),
}
"""The metrics by the name that the code uses. Those outside the conventions are called ``qreward.``."""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"
Points = Iterator[tuple[float, dict[str, Any]]]


@cache
def version() -> str:
    try:
        return metadata.version("qreward")
    except metadata.PackageNotFoundError:  # the library runs from a source directory
        return ""


def is_active(provider: object) -> bool:
    """Return whether a provider records anything. The providers of the API package record nothing until an SDK is set up."""
    return not type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))


def _limit_changes(state: ClientState) -> Points:
    for source in state.sources:
        changes = dict(source.window.changes)
        for (direction, reason), times in changes.items():
            what = {"qreward.change.direction": direction, "qreward.change.reason": "away" if reason == "nobody" else reason}
            yield times, address_of(source).attributes | what


def _endpoints(state: ClientState) -> Points:
    found = Counter({"available": 0, "ejected": 0, "probing": 0})
    for source in state.sources:
        health = source.health
        found["ejected" if not health.in_service else "probing" if health.half_open else "available"] += 1
    for name, count in found.items():
        yield count, {"qreward.endpoint.state": name}


OBSERVED: dict[str, Callable[[ClientState], Points]] = {
    "queue_size": lambda state: ((queue.waiting, {"qreward.queue.name": queue.name}) for queue in state.queues),
    "queue_capacity": lambda state: (
        (queue.capacity, {"qreward.queue.name": queue.name}) for queue in state.queues if queue.capacity is not None
    ),
    "waiting": lambda state: (
        (queue.why.waiting, {"qreward.queue.name": queue.name, "qreward.waiting.for": queue.why.code}) for queue in state.queues
    ),
    "active_requests": lambda state: ((source.inflight, address_of(source).attributes) for source in state.sources),
    "limit": lambda state: ((source.window.limit, address_of(source).attributes) for source in state.sources),
    "limit_changes": _limit_changes,
    "endpoint_count": _endpoints,
    "hedge_budget": lambda state: iter([(state.hedge_budget, {"qreward.pool": "client"})]),
}
"""Key of an observable metric -> function that yields its points."""

Read = Callable[[Any], ClientState]
"""A function that returns the current state of a client."""


class Instruments:
    """The instruments of one provider (None: the global one, even if it is set later), as attributes with the keys of ``METRICS``."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._provider = provider
        self._live = False
        self._checked_at = -1.0
        self._clients: WeakKeyDictionary[Any, Read] = WeakKeyDictionary()
        meter = metrics.get_meter("qreward", version(), provider, SCHEMA_URL)
        self.__dict__.update({key: self._make(meter, key, metric) for key, metric in METRICS.items()})

    def __getattr__(self, name: str) -> Any:  # for type checkers: the attributes are those of ``METRICS``
        raise AttributeError(name)

    def live(self, now: float) -> bool:
        """Return whether the provider records. It is checked at most every ``CHECK_INTERVAL`` seconds, until it does."""
        if not self._live and not 0 <= now - self._checked_at < CHECK_INTERVAL:
            self._checked_at = now
            provider = self._provider or metrics.get_meter_provider()
            self._live = is_active(provider)
        return self._live

    def observe(self, client: object, read: Read) -> None:
        """Observe the state of a client. Only a weak reference to the client is kept."""
        with _lock:
            self._clients[client] = read

    def _make(self, meter: metrics.Meter, key: str, metric: Metric) -> Any:
        if metric.kind == "histogram":
            advice = list(metric.buckets)
            return meter.create_histogram(metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=advice)
        if metric.kind == "counter":
            return meter.create_counter(metric.name, metric.unit, metric.description)
        create = {
            "observable_counter": meter.create_observable_counter,
            "observable_updowncounter": meter.create_observable_up_down_counter,
            "observable_gauge": meter.create_observable_gauge,
        }[metric.kind]
        return create(metric.name, [partial(self._observe, key)], metric.unit, metric.description)

    def _observe(self, key: str, _options: CallbackOptions) -> Iterable[Observation]:
        sums: dict[tuple[tuple[str, Any], ...], float] = {}
        with _lock:
            clients = list(self._clients.items())
        for client, read in clients:
            for value, attributes in OBSERVED[key](read(client)):
                point = tuple(sorted(attributes.items()))
                sums[point] = sums.get(point, 0) + value
        return [Observation(value, dict(point)) for point, value in sums.items() if isfinite(value)]


_lock = threading.Lock()
_of_provider: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()
_of_global: list[Instruments] = []


def instruments_of(provider: MeterProvider | None) -> Instruments:
    """Return the instruments of a provider. They are created on first use."""
    with _lock:
        if provider is None:
            if not _of_global:
                _of_global.append(Instruments(None))
            return _of_global[0]
        if provider not in _of_provider:
            _of_provider[provider] = Instruments(provider)
        return _of_provider[provider]


def _after_fork(_: object) -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have held the old lock
    _lock = threading.Lock()


background.watch(Instruments, _after_fork)
