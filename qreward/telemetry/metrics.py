"""The metrics, and their instruments of one meter provider, which are created once and shared by all clients that use the provider."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib import metadata
from math import isfinite
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from qreward.engine import background
from qreward.scheduler.why import route_of
from qreward.telemetry.attributes import address_of

CHECK_INTERVAL = 0.05
"""Minimum number of seconds between two checks whether a provider records anything. Checks are made only when calls are made."""

Kind = Literal["histogram", "counter", "observable_updowncounter"]

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Suggested bucket boundaries of histograms of durations."""
TOKENS = tuple(4**power for power in range(14))
"""Suggested bucket boundaries of histograms of token counts."""
ITEMS = tuple(2**power for power in range(13))
"""Suggested bucket boundaries of histograms of item counts."""


class Metric(NamedTuple):
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
    "tokens": Metric("gen_ai.client.token.usage", "histogram", "{token}", "Number of input and output tokens used.", TOKENS),
    "attempt_duration": _seconds("qreward.client.attempt.duration", "Duration of one attempt at one endpoint."),
    "queue_size": _state("qreward.client.queue.size", "{request}", "Requests that wait for an endpoint."),
    "waiting": _state("qreward.client.waiting", "{request}", "Items that have no result and are not in flight, by what they wait for."),
    "queue_wait": _seconds("qreward.client.queue.wait_time", "Time of a single call before its first attempt."),
    "queue_rejections": Metric(
        "qreward.client.queue.rejections", "counter", "{request}", "Requests that ended without having been sent: full, deadline, closed."
    ),
    "active_requests": _state("qreward.client.active_requests", "{request}", "Requests in flight at an endpoint."),
    "limit": _state("qreward.client.concurrency.limit", "{request}", "Requests that an endpoint may have in flight now."),
    "endpoint_count": _state("qreward.client.endpoint.count", "{endpoint}", "Endpoints by state: available, ejected, probing."),
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


OBSERVED: dict[str, Callable[[Any], Points]] = {
    "queue_size": _queues,
    "waiting": _waiting,
    "active_requests": lambda client: ((source.inflight, address_of(source).attributes) for source in client.fleet.sources()),
    "limit": lambda client: ((source.window.limit, address_of(source).attributes) for source in client.fleet.sources()),
    "endpoint_count": _endpoints,
}
"""Key of an observable metric -> function that yields its points of a client's ``Runtime``."""


class Instruments:
    """The instruments of one provider (None: the global one, even if it is set later), as attributes with the keys of ``METRICS``."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._provider = provider
        self._live = False
        self._checked_at = -1.0
        self._clients: WeakSet[Any] = WeakSet()
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

    def observe(self, client: Any) -> None:
        with _lock:
            self._clients.add(client)

    def _make(self, meter: metrics.Meter, key: str, metric: Metric) -> Any:
        name, kind, unit, description, buckets = metric
        if kind == "histogram":
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=list(buckets))
        if kind == "counter":
            return meter.create_counter(name, unit, description)
        return meter.create_observable_up_down_counter(name, [partial(self._observe, key)], unit, description)

    def _observe(self, key: str, _options: CallbackOptions) -> Iterable[Observation]:
        sums: dict[tuple[tuple[str, Any], ...], float] = {}
        with _lock:
            clients = list(self._clients)
        for client in clients:
            for value, attributes in OBSERVED[key](client):
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
