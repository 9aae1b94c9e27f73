"""What all calls of one kind have in common, found once: the name of their span and the attributes that it begins with."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from qreward.core.task import Task
from qreward.engine.herald import model_of, operation_of, route_of
from qreward.telemetry import names
from qreward.telemetry.places import Place

MOST = 1024
"""Kinds, and points of one kind, that are remembered; beyond it they are found anew."""


class Kind:
    """Calls of one operation, model and route.

    Attributes:
        name: of their span.
        start: attributes that are known when it begins, so that a sampler may see them.
        metric, model, queue: attributes of their metrics: all, the model alone, and the queue.
        inference: as the ``latest`` conventions mean it.
    """

    __slots__ = ("_points", "_providers", "_starts", "inference", "metric", "model", "name", "queue", "start")

    def __init__(self, task: Task, provider: str, providers: Mapping[str, str]) -> None:
        operation, model, route = operation_of(task), model_of(task), route_of(task.pool)
        self._providers = providers
        self.inference = operation in names.INFERENCE
        self.name = f"{names.BATCH if task.items else operation} {model}"
        self.metric: dict[str, Any] = {names.OPERATION: operation, names.PROVIDER: provider, names.REQUEST_MODEL: model}
        self.model = {names.REQUEST_MODEL: model}
        self.queue = {names.QUEUE_NAME: route}
        self.start = {**self.metric, names.ROUTE: route}
        if task.streamed:
            self.start[names.REQUEST_STREAM] = True
        if task.items:
            self.start[names.BATCH_SIZE] = len(task.items)
        self._starts: dict[str, tuple[Place, dict[str, Any]]] = {}
        self._points: dict[Hashable, dict[str, Any]] = {}

    def start_at(self, place: Place) -> dict[str, Any]:
        """The attributes of a call that one endpoint alone can serve."""
        found = self._starts.get(place.name)
        if found is None or found[0] is not place:
            found = self._starts[place.name] = place, {**self.start, **place.server, **self.provider_at(place)}
        return found[1]

    def call_point(self, place: Place | None, model: str | None, error: str | None, token: str | None = None) -> dict[str, Any]:
        """Attributes of a metric of a call; the same object for the same values."""
        key = (place, model, error, token)
        found = self._points.get(key)
        if found is None:
            where = {} if place is None else place.server | self.provider_at(place)
            more = {names.RESPONSE_MODEL: model, names.ERROR_TYPE: error, names.TOKEN_TYPE: token}
            found = self._remember(key, self.metric | where | _known(more))
        return found

    def attempt_point(self, place: Place, kind: str, outcome: str, error: str | None) -> dict[str, Any]:
        """Attributes of the metric of an attempt; the same object for the same values."""
        key = (place, kind, outcome, error, None)
        found = self._points.get(key)
        if found is None:
            what = {names.ATTEMPT_TYPE: kind, names.ATTEMPT_OUTCOME: outcome, **self.model}
            found = self._remember(key, what | place.attributes | _known({names.ERROR_TYPE: error}))
        return found

    def provider_at(self, place: Place) -> dict[str, Any]:
        """The provider, where an endpoint has one of its own."""
        own = self._providers.get(place.name) if self._providers else None
        return {} if own is None else {names.PROVIDER: own}

    def _remember(self, key: Hashable, point: dict[str, Any]) -> dict[str, Any]:
        if len(self._points) >= MOST:
            self._points.clear()
        self._points[key] = point
        return point


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


class Kinds:
    """All kinds that were met."""

    def __init__(self, provider: str, providers: Mapping[str, str]) -> None:
        self._provider, self._providers = provider, providers
        self._known: dict[Hashable, Kind] = {}

    def of(self, task: Task) -> Kind:
        """The kind of a call."""
        payload, pool = task.payload, task.pool
        try:
            key = (payload.codec, payload.model, pool.name, task.streamed, len(task.items))
        except AttributeError:  # not a call of an endpoint
            return self._new(task)
        kind = self._known.get(key)
        if kind is None:
            if len(self._known) >= MOST:
                self._known.clear()
            kind = self._known[key] = self._new(task)
        return kind

    def _new(self, task: Task) -> Kind:
        return Kind(task, self._provider, self._providers)
