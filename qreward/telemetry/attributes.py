"""The attributes of spans and metrics, taken from calls, endpoints, requests, answers and errors.

Attributes never contain the content of a request or an answer. If a call is recorded, the body of the answer is parsed again. This gives
the id, the model, the finish reasons, and the tokens that the engine does not count. The message of an error is not recorded, because it
may quote a prompt. Instead, ``error.type`` is recorded, and a text that is equal for all errors of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from qreward import errors
from qreward.scheduler.source import Source
from qreward.telemetry import names

Attributes = dict[str, Any]

CACHED = 4096
"""Maximum number of objects in each cache of ``ServerAddress`` objects, of start attributes, and of metric points. Similar calls share
these objects."""
_PORTS = {"http": 80, "https": 443}


def _known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


class ServerAddress:
    """Holds the attributes of one endpoint at one address.

    Attributes:
        name: name of the endpoint.
        server: ``server.address`` and ``server.port``, if known.
        endpoint: ``qreward.endpoint``.
        attributes: ``server`` and ``endpoint`` together.
    """

    __slots__ = ("attributes", "endpoint", "name", "server")

    def __init__(self, name: str, url: object) -> None:
        self.name = name
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port or _PORTS.get(parts.scheme)
        self.server = _known({names.SERVER_ADDRESS: parts.hostname, names.SERVER_PORT: port}) if parts.hostname else {}
        self.endpoint = {names.ENDPOINT: name}
        self.attributes = {names.ENDPOINT: name, **self.server}


_address = lru_cache(CACHED)(ServerAddress)


def address_of(source: Source) -> ServerAddress:
    """Return the address of a source. Calls with the same source return the same object."""
    return _address(source.name, getattr(source.handle, "base_url", None))


class CallKind:
    """Holds the attributes that all calls with the same operation, model and route share.

    Attributes:
        name: name of the spans.
        start: attributes that are known when a span starts. Samplers can use them.
        metric: attributes of the metrics.
        model: only the attributes of the model.
        queue: only the attributes of the queue.
        inference: True if the operation is an inference as defined by the ``latest`` conventions.
    """

    __slots__ = ("_providers", "inference", "metric", "model", "name", "queue", "start")

    def __init__(
        self, operation: str, model: str, route: str, streamed: bool, items: int, provider: str, providers: Mapping[str, str]
    ) -> None:
        self._providers = providers
        self.inference = operation in names.INFERENCE
        self.name = f"{names.BATCH if items else operation} {model}"
        self.metric: Attributes = {names.OPERATION: operation, names.PROVIDER: provider, names.REQUEST_MODEL: model}
        self.model = {names.REQUEST_MODEL: model}
        self.queue = {names.QUEUE_NAME: route}
        self.start = self.metric | _known({names.ROUTE: route, names.REQUEST_STREAM: streamed or None, names.BATCH_SIZE: items or None})

    def provider_at(self, address: ServerAddress) -> Attributes:
        """Return the provider attribute of an endpoint. Return no attribute if the settings name no provider for this endpoint."""
        return _known({names.PROVIDER: self._providers.get(address.name)})


@lru_cache(CACHED)
def start_at(kind: CallKind, address: ServerAddress) -> Attributes:
    """Return the attributes with which the span of a call starts, if only one endpoint can serve the call."""
    return {**kind.start, **address.server, **kind.provider_at(address)}


@lru_cache(CACHED)
def call_point(
    kind: CallKind, address: ServerAddress | None, model: str | None = None, error: str | None = None, token: str | None = None
) -> Attributes:
    """Return the attributes of a call's metric."""
    where = {} if address is None else address.server | kind.provider_at(address)
    return kind.metric | where | _known({names.RESPONSE_MODEL: model, names.ERROR_TYPE: error, names.TOKEN_TYPE: token})


@lru_cache(CACHED)
def attempt_point(kind: CallKind, address: ServerAddress, attempt_type: str, outcome: str, error: str | None) -> Attributes:
    """Return the attributes of an attempt's metric."""
    what = {names.ATTEMPT_TYPE: attempt_type, names.ATTEMPT_OUTCOME: outcome, **kind.model}
    return what | address.attributes | _known({names.ERROR_TYPE: error})


# answers

MAX_BODY = 1 << 20
"""Maximum number of bytes of an answer that is parsed again. Larger answers, such as lists of vectors, are not parsed."""
MAX_TEXT = 256
"""Maximum number of characters of a text that is taken from an answer."""


class ResponseMetadata(NamedTuple):
    """Metadata of an answer. A member that the answer does not have is None or empty.

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


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Any = None
    reasoning_tokens: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: Any = None


class _Body(msgspec.Struct, gc=False):
    id: Any = None
    model: Any = None
    system_fingerprint: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


_DECODER = msgspec.json.Decoder(_Body)


def metadata_of(value: Any) -> ResponseMetadata:
    """Return the metadata of an answer.

    For a stream, each member is taken from the first chunk that has it. The finish reasons are taken from all chunks.
    """
    body = getattr(value, "body", None)
    if type(body) is bytes:
        return _read(body)
    heads = getattr(value, "heads", None)
    chunks = [] if heads is None else [_read(each) for each in heads()]
    first: list[Any] = [next((found for found in column if found is not None), None) for column in zip(*chunks, strict=True)]
    return ResponseMetadata(*first)._replace(reasons=tuple(reason for chunk in chunks for reason in chunk.reasons if reason))


def _read(body: bytes) -> ResponseMetadata:
    if len(body) > MAX_BODY:
        return NOTHING
    try:
        seen = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NOTHING
    reasons = tuple([_text(choice.finish_reason) or "" for choice in seen.choices or ()])
    cached = reasoning = None
    if (usage := seen.usage) is not None:
        cached = _count(getattr(usage.prompt_tokens_details, "cached_tokens", None))
        reasoning = _count(getattr(usage.completion_tokens_details, "reasoning_tokens", None))
    fingerprint = _text(seen.system_fingerprint)
    return ResponseMetadata(_text(seen.id), _text(seen.model), reasons if any(reasons) else (), fingerprint, cached, reasoning)


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if type(value) is int else None


# requests

MAX_STOPS = 8
"""Maximum number of stop sequences that are recorded."""
MAX_REQUEST_TEXT = 64
"""Maximum number of characters of a stop sequence or a reasoning level that are recorded."""


def attributes_of(params: Mapping[str, Any]) -> Attributes:
    """Return the parameters of a request as attributes. A value with an unexpected type is left out.

    Example:
        >>> attributes_of({"temperature": 0, "n": 1, "stop": "END", "user": "me", "response_format": {"type": "json_object"}})
        {'gen_ai.request.temperature': 0, 'gen_ai.request.stop_sequences': ('END',), 'gen_ai.output.type': 'json'}
    """
    found: Attributes = {}
    for name, value in params.items():
        known = _PARAMETERS.get(name)
        if known is not None and (recorded := known[1](value)) is not None:
            found[known[0]] = recorded
    return found


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _stops(value: object) -> tuple[str, ...] | None:
    listed = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return tuple(text[:MAX_REQUEST_TEXT] for text in listed[:MAX_STOPS] if isinstance(text, str)) or None


def _output(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, Mapping) else None
    return {"json_object": "json", "json_schema": "json", "text": "text"}.get(kind) if isinstance(kind, str) else None


_PARAMETERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{name: (attribute, _number) for name, attribute in names.REQUEST_NUMBERS.items()},
    "n": (names.CHOICE_COUNT, lambda value: value if type(value) is int and value != 1 else None),
    "stop": (names.STOP_SEQUENCES, _stops),
    "reasoning_effort": (names.REASONING_LEVEL, lambda value: value[:MAX_REQUEST_TEXT] if isinstance(value, str) else None),
    "response_format": (names.OUTPUT_TYPE, _output),
}
"""Name of a parameter -> name of its attribute, and a function. The function returns the value to record, or None to record nothing."""


# errors

_ERROR_TYPES: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (errors.ConnectionFailed, "connection_error"),
    (errors.InvalidResponse, "invalid_response"),
    (errors.QueueFull, "queue_full"),
    (errors.CircuitOpen, "circuit_open"),
    (errors.Rejected, "rejected"),
)
_MEANINGS: dict[type[BaseException], str] = {
    errors.AuthenticationFailed: "The endpoint did not accept the API key, or the proxy did not accept the user and password.",
    errors.BadRequest: "The request itself is wrong; sending it again cannot help (400, 413, 422, or refused before it was sent).",
    errors.BudgetExceeded: "The budget of the judge is spent.",
    errors.CircuitOpen: "Every endpoint of the route is marked unhealthy, or the circuit breaker of a scheduled function is open.",
    errors.ClientClosed: "The client was closed before the request had a result.",
    errors.ConnectionFailed: "No connection could be opened, or it broke before the response was complete.",
    errors.DeadlineExceeded: "The deadline of the batch passed before this item had a result.",
    errors.InvalidResponse: "The response is not valid, or the server did not complete it.",
    errors.NoEndpoint: "No route matches the model, or all endpoints of the route were removed.",
    errors.QueueFull: "The queue has reached its limit.",
    errors.RateLimited: "The endpoint reported a rate limit or overload, or an exhausted quota.",
    errors.RequestError: "A request was attempted and failed.",
    errors.RequestTimeout: "A time limit passed: that of the whole request, queueing included, or that of one attempt.",
    errors.ServerError: "The endpoint failed while it processed the request.",
    errors.StreamInterrupted: "A stream ended early after the caller received part of it, or it was read after it had been closed.",
}


def error_type(error: BaseException) -> str:
    """Return the ``error.type`` of an error.

    The result is the HTTP status of the error if the error has a status. For some errors without a status, it is a name such as
    ``timeout``. For all other errors of qreward, it is the name of the class. For errors of other libraries, it is ``_OTHER``.

    Example:
        >>> from qreward.errors import RateLimited, RequestTimeout
        >>> error_type(RateLimited("no", status_code=429)), error_type(RequestTimeout("late")), error_type(KeyError("x"))
        ('429', 'timeout', '_OTHER')
    """
    if isinstance(error, errors.StreamInterrupted) and isinstance(error.__cause__, errors.RequestError):
        error = error.__cause__
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 300:
        return str(status)
    for known, name in _ERROR_TYPES:
        if isinstance(error, known):
            return name
    kind = type(error)
    return f"{kind.__module__}.{kind.__name__}" if kind.__module__ == errors.__name__ else "_OTHER"


def error_description(error: BaseException) -> str:
    """Return the name of an error's class, and what the class means."""
    kind = type(error)
    return f"{kind.__name__}: {_MEANINGS[kind]}" if kind in _MEANINGS else kind.__name__


def rejection(error: BaseException) -> str:
    """Return the reason why a call ended without being sent: ``full``, ``deadline``, ``closed``, or else the ``error.type``."""
    if isinstance(error, errors.QueueFull):
        return "full"
    if isinstance(error, TimeoutError | errors.DeadlineExceeded):
        return "deadline"
    return "closed" if isinstance(error, errors.ClientClosed) else error_type(error)
