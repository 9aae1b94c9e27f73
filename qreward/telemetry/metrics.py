"""The metric instruments of a meter provider. They are created once and shared by all clients that use the provider.

Measurements are recorded only if the provider does something with them. The state of clients is read when metrics are collected, by
observable instruments that add up the states of all live clients.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf, isfinite
from typing import Any
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from qreward.engine.snapshots import ClientState
from qreward.telemetry import names
from qreward.telemetry.attributes import place_of
from qreward.telemetry.names import Dialect, Metric
from qreward.telemetry.spans import LOOK, SCOPE, does_something, version

Points = Iterator[tuple[float, dict[str, Any]]]


def _queue_size(state: ClientState) -> Points:
    for queue in state.queues:
        yield queue.waiting, {names.QUEUE_NAME: queue.name}


def _queue_capacity(state: ClientState) -> Points:
    for queue in state.queues:
        if queue.capacity is not None:
            yield queue.capacity, {names.QUEUE_NAME: queue.name}


def _active(state: ClientState) -> Points:
    for source in state.sources:
        yield source.inflight, place_of(source).attributes


def _limit(state: ClientState) -> Points:
    for source in state.sources:
        yield source.window.limit, place_of(source).attributes


def _limit_changes(state: ClientState) -> Points:
    for source in state.sources:
        for (direction, reason), times in dict(source.window.changes).items():
            where = place_of(source).attributes
            yield times, {**where, names.CHANGE_DIRECTION: direction, names.CHANGE_REASON: _REASONS.get(reason, reason)}


_REASONS = {"nobody": "away"}


def _endpoints(state: ClientState) -> Points:
    found = Counter({"available": 0, "ejected": 0, "probing": 0})
    for source in state.sources:
        health = source.health
        found["ejected" if not health.in_service else "available" if health.half_open_limit == inf else "probing"] += 1
    for name, count in found.items():
        yield count, {names.ENDPOINT_STATE: name}


def _hedges(state: ClientState) -> Points:
    yield state.hedge_budget, {names.POOL: "client"}


OBSERVED: dict[str, Callable[[ClientState], Points]] = {
    "queue_size": _queue_size,
    "queue_capacity": _queue_capacity,
    "active_requests": _active,
    "limit": _limit,
    "limit_changes": _limit_changes,
    "endpoint_count": _endpoints,
    "hedge_budget": _hedges,
}
"""The function that yields the points of an observable instrument, by the instrument's key in ``names.METRICS``."""


Read = Callable[[Any], ClientState]
"""Returns the current state of a client."""


class Instruments:
    """The instruments of one provider. Each is an attribute named by its key in ``names.METRICS``.

    Args:
        provider: the meter provider. None for the global one, even if it is set later.
        dialect: version of the semantic conventions.
    """

    def __init__(self, provider: MeterProvider | None, dialect: Dialect) -> None:
        self._provider = provider
        self._live = False
        self._look_at = -1.0
        self._clients: WeakKeyDictionary[Any, Read] = WeakKeyDictionary()
        meter = metrics.get_meter(SCOPE, version(), provider, names.SCHEMA_URLS[dialect])
        for key, metric in names.METRICS[dialect].items():
            setattr(self, key, self._make(meter, key, metric))

    def __getattr__(self, name: str) -> Any:
        """None for an instrument that the dialect does not define."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def live(self, now: float) -> bool:
        """Whether the provider does something with measurements. Checked every ``LOOK`` seconds until it does."""
        if not self._live and not 0 <= now - self._look_at < LOOK:
            self._look_at = now
            provider = self._provider or metrics.get_meter_provider()
            self._live = does_something(provider)
        return self._live

    def observe(self, client: object, read: Read) -> None:
        """Observe the state of a client. Only a weak reference to it is kept."""
        with _lock:
            self._clients[client] = read

    def states(self) -> list[ClientState]:
        """The states of all live clients."""
        with _lock:
            clients = list(self._clients.items())
        return [read(client) for client, read in clients]

    def _make(self, meter: metrics.Meter, key: str, metric: Metric) -> Any:
        match metric.kind:
            case "histogram":
                advice = list(metric.buckets)
                return meter.create_histogram(metric.name, metric.unit, metric.says, explicit_bucket_boundaries_advisory=advice)
            case "counter":
                return meter.create_counter(metric.name, metric.unit, metric.says)
            case "observable_counter":
                return meter.create_observable_counter(metric.name, [partial(self._observe, key)], metric.unit, metric.says)
            case "observable_updowncounter":
                return meter.create_observable_up_down_counter(metric.name, [partial(self._observe, key)], metric.unit, metric.says)
            case "observable_gauge":
                return meter.create_observable_gauge(metric.name, [partial(self._observe, key)], metric.unit, metric.says)

    def _observe(self, key: str, _options: CallbackOptions) -> Iterable[Observation]:
        """One observation for each set of attributes: the sum over all clients."""
        sums: dict[tuple[tuple[str, Any], ...], float] = {}
        for state in self.states():
            for value, attributes in OBSERVED[key](state):
                point = tuple(sorted(attributes.items()))
                sums[point] = sums.get(point, 0) + value
        return [Observation(value, dict(point)) for point, value in sums.items() if isfinite(value)]


_lock = threading.Lock()
_of_provider: WeakKeyDictionary[MeterProvider, dict[Dialect, Instruments]] = WeakKeyDictionary()
_of_global: dict[Dialect, Instruments] = {}


def instruments_of(provider: MeterProvider | None, dialect: Dialect) -> Instruments:
    """The instruments of a provider, created on first use."""
    with _lock:
        made = _of_global if provider is None else _of_provider.setdefault(provider, {})
        found = made.get(dialect)
        if found is None:
            found = made[dialect] = Instruments(provider, dialect)
        return found


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have held the old lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
