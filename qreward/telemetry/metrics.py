"""The metric instruments of a meter provider. They are created once and shared by all clients that use the provider.

Measurements are made only if the provider records them. Observable instruments read the states of all live clients when metrics are
collected, and add these states up.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf, isfinite
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from qreward.engine import background
from qreward.engine.snapshots import ClientState
from qreward.telemetry import names
from qreward.telemetry.attributes import address_of
from qreward.telemetry.names import Dialect, Metric

CHECK_INTERVAL = 0.05
"""Minimum number of seconds between two checks whether a provider records anything. Checks are made only when calls are made."""

Points = Iterator[tuple[float, dict[str, Any]]]


def is_active(provider: object) -> bool:
    """Return whether a provider records anything. The providers of the API package record nothing until an SDK is set up."""
    return not type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))


def _limit_changes(state: ClientState) -> Points:
    for source in state.sources:
        changes = dict(source.window.changes)
        for (direction, reason), times in changes.items():
            what = {names.CHANGE_DIRECTION: direction, names.CHANGE_REASON: "away" if reason == "nobody" else reason}
            yield times, address_of(source).attributes | what


def _endpoints(state: ClientState) -> Points:
    found = Counter({"available": 0, "ejected": 0, "probing": 0})
    for source in state.sources:
        health = source.health
        found["ejected" if not health.in_service else "available" if health.half_open_limit == inf else "probing"] += 1
    for name, count in found.items():
        yield count, {names.ENDPOINT_STATE: name}


OBSERVED: dict[str, Callable[[ClientState], Points]] = {
    "queue_size": lambda state: ((queue.waiting, {names.QUEUE_NAME: queue.name}) for queue in state.queues),
    "queue_capacity": lambda state: (
        (queue.capacity, {names.QUEUE_NAME: queue.name}) for queue in state.queues if queue.capacity is not None
    ),
    "waiting": lambda state: (
        (queue.why.waiting, {names.QUEUE_NAME: queue.name, names.WAITING_FOR: queue.why.code}) for queue in state.queues
    ),
    "active_requests": lambda state: ((source.inflight, address_of(source).attributes) for source in state.sources),
    "limit": lambda state: ((source.window.limit, address_of(source).attributes) for source in state.sources),
    "limit_changes": _limit_changes,
    "endpoint_count": _endpoints,
    "hedge_budget": lambda state: iter([(state.hedge_budget, {names.POOL: "client"})]),
}
"""Key of an observable instrument in ``names.METRICS`` -> function that yields the points of the instrument."""


Read = Callable[[Any], ClientState]
"""A function that returns the current state of a client."""


class Instruments:
    """Holds the instruments of one provider. Each instrument is an attribute with the name of its key in ``names.METRICS``.

    Args:
        provider: the meter provider. None means the global meter provider, even if it is set later.
        dialect: version of the semantic conventions.
    """

    def __init__(self, provider: MeterProvider | None, dialect: Dialect) -> None:
        self._provider = provider
        self._live = False
        self._checked_at = -1.0
        self._clients: WeakKeyDictionary[Any, Read] = WeakKeyDictionary()
        meter = metrics.get_meter(names.SCOPE, names.version(), provider, names.SCHEMA_URLS[dialect])
        for key, metric in names.METRICS[dialect].items():
            setattr(self, key, self._make(meter, key, metric))

    def __getattr__(self, name: str) -> Any:
        """Return None for an instrument that the dialect does not define."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def live(self, now: float) -> bool:
        """Return whether the provider records measurements.

        The provider is checked at most every ``CHECK_INTERVAL`` seconds. After a positive result, it is not checked again.
        """
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
        """Return one observation for each set of attributes. The value of an observation is the sum over all clients."""
        sums: dict[tuple[tuple[str, Any], ...], float] = {}
        with _lock:
            clients = list(self._clients.items())
        for client, read in clients:
            for value, attributes in OBSERVED[key](read(client)):
                point = tuple(sorted(attributes.items()))
                sums[point] = sums.get(point, 0) + value
        return [Observation(value, dict(point)) for point, value in sums.items() if isfinite(value)]


_lock = threading.Lock()
_of_provider: WeakKeyDictionary[MeterProvider, dict[Dialect, Instruments]] = WeakKeyDictionary()
_of_global: dict[Dialect, Instruments] = {}


def instruments_of(provider: MeterProvider | None, dialect: Dialect) -> Instruments:
    """Return the instruments of a provider. The instruments are created on first use."""
    with _lock:
        made = _of_global if provider is None else _of_provider.setdefault(provider, {})
        found = made.get(dialect)
        if found is None:
            found = made[dialect] = Instruments(provider, dialect)
        return found


def _after_fork(_: object) -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have held the old lock
    _lock = threading.Lock()


background.watch(Instruments, _after_fork)
