"""From the state of a client to what its observable instruments show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from qreward.engine.report import State
from qreward.telemetry import names
from qreward.telemetry.places import place_of

Points = Iterator[tuple[float, dict[str, Any]]]


def _queue_size(state: State) -> Points:
    for queue in state.queues:
        yield queue.waiting, {names.QUEUE_NAME: queue.name}


def _queue_capacity(state: State) -> Points:
    for queue in state.queues:
        if queue.capacity is not None:
            yield queue.capacity, {names.QUEUE_NAME: queue.name}


def _active(state: State) -> Points:
    for source in state.sources:
        yield source.inflight, place_of(source).attributes


def _limit(state: State) -> Points:
    for source in state.sources:
        yield source.window.limit, place_of(source).attributes


def _limit_changes(state: State) -> Points:
    for source in state.sources:
        changes: dict[tuple[str, str], int] = dict(getattr(source.window, "changes", {}))
        for (direction, reason), times in changes.items():
            where = place_of(source).attributes
            yield times, {**where, names.CHANGE_DIRECTION: direction, names.CHANGE_REASON: _REASONS.get(reason, reason)}


_REASONS = {"nobody": "away"}


def _endpoints(state: State) -> Points:
    found = Counter({"available": 0, "ejected": 0, "probing": 0})
    for source in state.sources:
        health = source.health
        found["ejected" if not health.in_service else "available" if health.allowed == inf else "probing"] += 1
    for name, count in found.items():
        yield count, {names.ENDPOINT_STATE: name}


def _hedges(state: State) -> Points:
    yield state.hedge_budget, {names.POOL: "client"}


OBSERVED: dict[str, Callable[[State], Points]] = {
    "queue_size": _queue_size,
    "queue_capacity": _queue_capacity,
    "active_requests": _active,
    "limit": _limit,
    "limit_changes": _limit_changes,
    "endpoint_count": _endpoints,
    "hedge_budget": _hedges,
}
"""What the code calls an observable instrument -> its points."""
