"""The attributes of spans and metrics: of similar calls, endpoints, requests, answers and errors.

Attributes never contain the content of a request or an answer. An answer's body is parsed again only if the call is recorded, for its id,
its model, its finish reasons and the tokens that the engine does not count. The message of an error is not recorded, as it may quote a
server's response, which may quote a prompt: errors have an ``error.type`` and a text that is the same for all errors of a class.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import isfinite
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from qreward.engine.instrumentation import model_of, operation_of, route_of
from qreward.errors import (
    CircuitOpen,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidResponse,
    QueueFull,
    Rejected,
    RequestError,
    StreamInterrupted,
)
from qreward.scheduler.state import Source, Task
from qreward.telemetry import names

MOST = 4096
"""The most cached places. When the cache is full, it is cleared."""

_PORTS = {"http": 80, "https": 443}


class ServerAddress:
    """The attributes of one endpoint at one address.

    Attributes:
        name: name of the endpoint.
        server: ``server.address`` and ``server.port``, if known.
        endpoint: ``qreward.endpoint``.
        attributes: ``server`` and ``endpoint`` together.
    """

    __slots__ = ("attributes", "endpoint", "name", "server")

    def __init__(self, name: str, server: dict[str, Any]) -> None:
        self.name = name
        self.server = server
        self.endpoint = {names.ENDPOINT: name}
        self.attributes = {names.ENDPOINT: name, **server}


_known: dict[tuple[str, object], ServerAddress] = {}


def place_of(source: Source) -> ServerAddress:
    """The place of a source. Cached for each endpoint."""
    url = getattr(source.handle, "base_url", None)
    place = _known.get((source.name, url))
    if place is None:
        if len(_known) >= MOST:
            _known.clear()
        place = _known[source.name, url] = ServerAddress(source.name, _server(url) if isinstance(url, str) else {})
    return place


def _server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if not parts.hostname:
        return {}
    port = parts.port or _PORTS.get(parts.scheme)
    return {names.SERVER_ADDRESS: parts.hostname} | ({} if port is None else {names.SERVER_PORT: port})


MOST_KINDS = 1024
"""The most cached kinds, and the most cached points of one kind. When a cache is full, it is cleared."""


class CallKind:
    """The shared attributes of all calls with the same operation, model and route.

    Attributes:
        name: name of their spans.
        start: attributes that are known when a span starts, so that samplers see them.
        metric: attributes of their metrics.
        model: the model alone.
        queue: the queue alone.
        inference: True if the operation is an inference as defined by the ``latest`` conventions.
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
        self._starts: dict[str, tuple[ServerAddress, dict[str, Any]]] = {}
        self._points: dict[Hashable, dict[str, Any]] = {}

    def start_at(self, place: ServerAddress) -> dict[str, Any]:
        """The start attributes of a call that only one endpoint can serve."""
        found = self._starts.get(place.name)
        if found is None or found[0] is not place:
            found = self._starts[place.name] = place, {**self.start, **place.server, **self.provider_at(place)}
        return found[1]

    def call_point(self, place: ServerAddress | None, model: str | None, error: str | None, token: str | None = None) -> dict[str, Any]:
        """The attributes of a call's metric. Cached: equal arguments return the same object."""
        key = (place, model, error, token)
        found = self._points.get(key)
        if found is None:
            where = {} if place is None else place.server | self.provider_at(place)
            more = {names.RESPONSE_MODEL: model, names.ERROR_TYPE: error, names.TOKEN_TYPE: token}
            found = self._remember(key, self.metric | where | _known_kind(more))
        return found

    def attempt_point(self, place: ServerAddress, kind: str, outcome: str, error: str | None) -> dict[str, Any]:
        """The attributes of an attempt's metric. Cached: equal arguments return the same object."""
        key = (place, kind, outcome, error, None)
        found = self._points.get(key)
        if found is None:
            what = {names.ATTEMPT_TYPE: kind, names.ATTEMPT_OUTCOME: outcome, **self.model}
            found = self._remember(key, what | place.attributes | _known_kind({names.ERROR_TYPE: error}))
        return found

    def provider_at(self, place: ServerAddress) -> dict[str, Any]:
        """The provider attribute of an endpoint that has its own provider, else nothing."""
        own = self._providers.get(place.name) if self._providers else None
        return {} if own is None else {names.PROVIDER: own}

    def _remember(self, key: Hashable, point: dict[str, Any]) -> dict[str, Any]:
        if len(self._points) >= MOST_KINDS:
            self._points.clear()
        self._points[key] = point
        return point


def _known_kind(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


class Kinds:
    """A cache of kinds."""

    def __init__(self, provider: str, providers: Mapping[str, str]) -> None:
        self._provider, self._providers = provider, providers
        self._known: dict[Hashable, CallKind] = {}

    def of(self, task: Task) -> CallKind:
        """The kind of a call."""
        payload, pool = task.payload, task.pool
        try:
            key = (payload.codec, payload.model, pool.name, task.streamed, len(task.items))
        except AttributeError:  # not a call of an endpoint
            return self._new(task)
        kind = self._known.get(key)
        if kind is None:
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            kind = self._known[key] = self._new(task)
        return kind

    def _new(self, task: Task) -> CallKind:
        return CallKind(task, self._provider, self._providers)


LONGEST_BODY = 1 << 20
"""The most bytes of an answer that is parsed again. Larger ones, such as lists of vectors, are skipped."""
LONGEST_TEXT = 256


class ResponseMetadata(NamedTuple):
    """Metadata of an answer; None or empty where the answer has none.

    Attributes:
        id: the id of the response.
        model: the model that answered.
        reasons: the finish reasons.
        fingerprint: ``system_fingerprint``.
        cached: input tokens that were read from a cache.
        reasoning: output tokens that were used for reasoning.
    """

    id: str | None = None
    model: str | None = None
    reasons: tuple[str, ...] = ()
    fingerprint: str | None = None
    cached: int | None = None
    reasoning: int | None = None


NOTHING = ResponseMetadata()


class _Prompt(msgspec.Struct, gc=False):
    cached_tokens: Any = None


class _Completion(msgspec.Struct, gc=False):
    reasoning_tokens: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens_details: _Prompt | None = None
    completion_tokens_details: _Completion | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: Any = None


class _Seen(msgspec.Struct, gc=False):
    id: Any = None
    model: Any = None
    system_fingerprint: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


_DECODER = msgspec.json.Decoder(_Seen)


def facts_of(value: Any) -> ResponseMetadata:
    """The metadata of an answer. For a stream, that of its chunks is combined."""
    body = getattr(value, "body", None)
    if type(body) is bytes:
        return _read(body)
    heads = getattr(value, "heads", None)
    return NOTHING if heads is None else _together([_read(each) for each in heads()])


def _read(body: bytes) -> ResponseMetadata:
    if len(body) > LONGEST_BODY:
        return NOTHING
    try:
        seen = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NOTHING
    choices, usage, cached, reasoning = seen.choices or (), seen.usage, None, None
    if len(choices) == 1:
        reason = _text(choices[0].finish_reason)
        reasons: tuple[str, ...] = () if reason is None else (reason,)
    else:
        reasons = tuple(_text(choice.finish_reason) or "" for choice in choices)
    if usage is not None and usage.prompt_tokens_details is not None:
        cached = _count(usage.prompt_tokens_details.cached_tokens)
    if usage is not None and usage.completion_tokens_details is not None:
        reasoning = _count(usage.completion_tokens_details.reasoning_tokens)
    return ResponseMetadata(
        _text(seen.id), _text(seen.model), reasons if any(reasons) else (), _text(seen.system_fingerprint), cached, reasoning
    )


def _together(all_facts: list[ResponseMetadata]) -> ResponseMetadata:
    """Combine the metadata of chunks: the first known value of each field, and all finish reasons."""

    def first(of: str) -> Any:
        return next((value for facts in all_facts if (value := getattr(facts, of)) is not None), None)

    reasons = tuple(reason for facts in all_facts for reason in facts.reasons if reason)
    return ResponseMetadata(first("id"), first("model"), reasons, first("fingerprint"), first("cached"), first("reasoning"))


def _text(value: object) -> str | None:
    return value[:LONGEST_TEXT] if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if type(value) is int else None


Attributes = dict[str, Any]

MOST_STOPS, LONGEST_REQUEST_TEXT = 8, 64
"""The most stop sequences that are recorded, and the most characters of a stop sequence or reasoning level."""


def attributes_of(params: Mapping[str, Any]) -> Attributes:
    """The parameters of a request as attributes. A value with an unexpected type is left out.

    Example:
        >>> attributes_of({"temperature": 0, "n": 1, "stop": "END", "user": "me", "response_format": {"type": "json_object"}})
        {'gen_ai.request.temperature': 0, 'gen_ai.request.stop_sequences': ('END',), 'gen_ai.output.type': 'json'}
    """
    found: Attributes = {}
    for name, value in params.items():
        attribute = names.REQUEST_NUMBERS.get(name)
        if attribute is not None:
            if _is_number(value):
                found[attribute] = value
        elif (make := _OTHERS.get(name)) is not None:
            made = make(value)
            if made is not None:
                found[made[0]] = made[1]
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _choices(value: object) -> tuple[str, Any] | None:
    return (names.CHOICE_COUNT, value) if type(value) is int and value != 1 else None


def _stops(value: object) -> tuple[str, Any] | None:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        return None
    texts = tuple(text[:LONGEST_REQUEST_TEXT] for text in listed[:MOST_STOPS] if isinstance(text, str))
    return (names.STOP_SEQUENCES, texts) if texts else None


def _reasoning(value: object) -> tuple[str, Any] | None:
    return (names.REASONING_LEVEL, value[:LONGEST_REQUEST_TEXT]) if isinstance(value, str) else None


def _output(value: object) -> tuple[str, Any] | None:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind in ("json_object", "json_schema"):
        return names.OUTPUT_TYPE, "json"
    return (names.OUTPUT_TYPE, "text") if kind == "text" else None


_OTHERS = {"n": _choices, "stop": _stops, "reasoning_effort": _reasoning, "response_format": _output}


OTHER = "_OTHER"

_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (ConnectionFailed, "connection_error"),
    (InvalidResponse, "invalid_response"),
    (QueueFull, "queue_full"),
    (CircuitOpen, "circuit_open"),
    (DeadlineExceeded, "rejected"),
    (Rejected, "rejected"),
)


def error_type(error: BaseException) -> str:
    """The ``error.type`` of an error: the HTTP status if there was one, else a name such as ``timeout``, else the class of a qreward error.

    Errors of other libraries are ``_OTHER``.

    Example:
        >>> from qreward.errors import RateLimited, RequestTimeout
        >>> error_type(RateLimited("no", status_code=429)), error_type(RequestTimeout("late")), error_type(KeyError("x"))
        ('429', 'timeout', '_OTHER')
    """
    if isinstance(error, StreamInterrupted) and isinstance(error.__cause__, RequestError):
        error = error.__cause__
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 300:
        return str(status)
    for kind, word in _WORDS:
        if isinstance(error, kind):
            return word
    kind = type(error)
    return f"{kind.__module__}.{kind.__name__}" if kind.__module__ == "qreward.errors" else OTHER


def said(error: BaseException) -> str:
    """The name of an error's class, with the first line of its docstring for a qreward error."""
    kind = type(error)
    first = (kind.__doc__ or "").strip().partition("\n")[0] if kind.__module__ == "qreward.errors" else ""
    return f"{kind.__name__}: {first}" if first else kind.__name__


def rejection(error: BaseException) -> str:
    """Why a call ended without being sent: ``full``, ``deadline``, ``closed``, or else its ``error.type``."""
    if isinstance(error, QueueFull):
        return "full"
    if isinstance(error, TimeoutError | DeadlineExceeded):
        return "deadline"
    return "closed" if type(error).__name__ == "ClientClosed" else error_type(error)
