"""The attributes of spans and metrics, by the GenAI conventions v1.41. They hold no content unless the program asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from qreward import errors
from qreward.engine.instrumentation import End
from qreward.scheduler.outcome import Answer
from qreward.scheduler.source import Source
from qreward.scheduler.task import Task
from qreward.transport.redaction import Secrets, secrets_of

Attributes = dict[str, Any]

CACHED = 4096
"""Maximum number of objects in each cache of objects that similar calls share."""
_PORTS = {"http": 80, "https": 443}


def known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


class ServerAddress:
    """The attributes of one endpoint at one address: of its server, of the endpoint, and of both together."""

    __slots__ = ("attributes", "endpoint", "name", "server")

    def __init__(self, name: str, url: object) -> None:
        self.name = name
        parts = urlsplit(url if isinstance(url, str) else "")
        port = parts.port or _PORTS.get(parts.scheme)
        self.server = known({"server.address": parts.hostname, "server.port": port}) if parts.hostname else {}
        self.endpoint = {"qreward.endpoint": name}
        self.attributes = {"qreward.endpoint": name, **self.server}


_address = lru_cache(CACHED)(ServerAddress)


def address_of(source: Source) -> ServerAddress:
    return _address(source.name, getattr(source.endpoint, "base_url", None))


class CallKind:
    """The attributes that all calls with the same operation, model and route share. ``start`` is known when a span starts, for samplers."""

    __slots__ = ("_providers", "inference", "metric", "model", "name", "queue", "start")

    def __init__(
        self, operation: str, model: str, route: str, streamed: bool, items: int, provider: str, providers: Mapping[str, str]
    ) -> None:
        self._providers = providers
        self.inference = operation in ("chat", "text_completion")
        self.name = f"{'batch' if items else operation} {model}"
        self.metric: Attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": provider, "gen_ai.request.model": model}
        self.model = {"gen_ai.request.model": model}
        self.queue = {"qreward.queue.name": route}
        self.start = self.metric | known(
            {"qreward.route": route, "gen_ai.request.stream": streamed or None, "qreward.batch.size": items or None}
        )

    def provider_at(self, address: ServerAddress) -> Attributes:
        return known({"gen_ai.provider.name": self._providers.get(address.name)})


@lru_cache(CACHED)
def start_at(kind: CallKind, address: ServerAddress) -> Attributes:
    return {**kind.start, **address.server, **kind.provider_at(address)}


@lru_cache(CACHED)
def call_point(
    kind: CallKind, address: ServerAddress | None, model: str | None = None, error: str | None = None, token: str | None = None
) -> Attributes:
    where = {} if address is None else address.server | kind.provider_at(address)
    return kind.metric | where | known({"gen_ai.response.model": model, "error.type": error, "gen_ai.token.type": token})


@lru_cache(CACHED)
def attempt_point(kind: CallKind, address: ServerAddress, attempt_type: str, outcome: str, error: str | None) -> Attributes:
    what = {"qreward.attempt.type": attempt_type, "qreward.attempt.outcome": outcome, **kind.model}
    return what | address.attributes | known({"error.type": error})


# answers

MAX_BODY = 1 << 20
"""Maximum number of bytes of an answer that is parsed again. Larger answers, such as lists of vectors, are not parsed."""
MAX_TEXT = 256
"""Maximum number of characters of a text that is taken from an answer."""


class ResponseMetadata(NamedTuple):
    """What is read of an answer beside its tokens: ``cached`` input tokens, and output tokens for ``reasoning``."""

    id: str | None = None
    model: str | None = None
    reasons: tuple[str, ...] = ()
    fingerprint: str | None = None
    cached: int | None = None
    reasoning: int | None = None

    def attributes(self, answer: Answer | None) -> Attributes:
        found: Attributes = {
            "gen_ai.response.id": self.id,
            "gen_ai.response.model": self.model,
            "gen_ai.response.finish_reasons": self.reasons or None,
            "openai.response.system_fingerprint": self.fingerprint,
        }
        if answer is not None:
            found |= {
                "gen_ai.usage.input_tokens": answer.prompt_tokens,
                "gen_ai.usage.output_tokens": answer.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": self.cached,
                "gen_ai.usage.reasoning.output_tokens": self.reasoning,
            }
        return known(found)


NOTHING = ResponseMetadata()


class _Choice(msgspec.Struct, gc=False):
    finish_reason: Any = None


class _Body(msgspec.Struct, gc=False):
    id: Any = None
    model: Any = None
    system_fingerprint: Any = None
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Body)


def metadata_of(value: Any) -> ResponseMetadata:
    """Return the metadata of an answer. The body of a whole answer, and each kept chunk of a stream, are parsed again."""
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
    cached = _detail(seen.usage, "prompt_tokens_details", "cached_tokens")
    reasoning = _detail(seen.usage, "completion_tokens_details", "reasoning_tokens")
    fingerprint = _text(seen.system_fingerprint)
    return ResponseMetadata(_text(seen.id), _text(seen.model), reasons if any(reasons) else (), fingerprint, cached, reasoning)


def _detail(usage: dict[str, Any] | None, details: str, name: str) -> int | None:
    found = usage and usage.get(details)
    count = found.get(name) if isinstance(found, dict) else None
    return count if type(count) is int else None


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


# requests

MAX_STOPS = 8
"""Maximum number of stop sequences that are recorded."""
MAX_REQUEST_TEXT = 64
"""Maximum number of characters of a stop sequence or a reasoning level that are recorded."""


def attributes_of(params: Mapping[str, Any]) -> Attributes:
    found: Attributes = {}
    for name, value in params.items():
        place = _PARAMETERS.get(name)
        if place is not None and (recorded := place[1](value)) is not None:
            found[place[0]] = recorded
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
    **{name: (f"gen_ai.request.{name}", _number) for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")},
    **{name: (f"gen_ai.request.{name}", _number) for name in ("frequency_penalty", "presence_penalty")},
    "max_completion_tokens": ("gen_ai.request.max_tokens", _number),
    "n": ("gen_ai.request.choice.count", lambda value: value if type(value) is int and value != 1 else None),
    "stop": ("gen_ai.request.stop_sequences", _stops),
    "reasoning_effort": ("gen_ai.request.reasoning.level", lambda value: value[:MAX_REQUEST_TEXT] if isinstance(value, str) else None),
    "response_format": ("gen_ai.output.type", _output),
}
"""Name of a parameter -> name of its attribute, and a function that returns the value to record, or None."""


# errors

_ERROR_TYPES: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (errors.ConnectionFailed, "connection_error"),
    (errors.InvalidResponse, "invalid_response"),
    (errors.QueueFull, "queue_full"),
    (errors.CircuitOpen, "circuit_open"),
    (errors.Rejected, "rejected"),
)


def error_type(error: BaseException) -> str:
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
    """Return the name of an error's class and what the class means. The message is left out, because it may quote a prompt."""
    kind = type(error)
    meaning = (kind.__doc__ or "").partition("\n")[0] if kind.__module__ == errors.__name__ else ""
    return f"{kind.__name__}: {meaning}" if meaning else kind.__name__


def rejection(error: BaseException) -> str:
    if isinstance(error, errors.QueueFull):
        return "full"
    if isinstance(error, TimeoutError | errors.DeadlineExceeded):
        return "deadline"
    return "closed" if isinstance(error, errors.ClientClosed) else error_type(error)


# messages, if the program asks for them

MAX_MESSAGES = 64
"""Maximum number of input messages of a call that are recorded."""


def messages_of(task: Task, end: End, reasons: tuple[str, ...], longest: int, *, with_output: bool) -> Attributes:
    headers = Secrets().and_headers(getattr(task.payload, "headers", None))
    endpoints = [source.endpoint for source in (task.pool.sources if task.pool is not None else ())]
    secrets = [headers, *(secrets_of(each) for each in endpoints if hasattr(each, "api_key"))]  # type: ignore[arg-type]
    inputs, found = getattr(task.payload, "inputs", None), dict[str, Any]()
    if isinstance(inputs, list | tuple) and inputs and all(isinstance(each, Mapping) for each in inputs):
        messages = [
            {"role": str(each.get("role", "")), "parts": list(_parts(each.get("content"), secrets, longest))}
            for each in inputs[:MAX_MESSAGES]
        ]
        found["gen_ai.input.messages"] = [each for each in messages if each["role"] != "system"]
        if system := [part for each in messages if each["role"] == "system" for part in each["parts"]]:
            found["gen_ai.system_instructions"] = system
    if with_output and isinstance(end, Answer) and (text := end.value.text()):
        parts = list(_parts(text, secrets, longest))
        found["gen_ai.output.messages"] = [{"role": "assistant", "parts": parts, "finish_reason": reasons[0] if reasons else ""}]
    return {name: json.dumps(value, ensure_ascii=False) for name, value in found.items()}


def _parts(content: object, secrets: list[Secrets], longest: int) -> Iterator[dict[str, Any]]:
    for part in content if isinstance(content, list) else [content]:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if isinstance(text, str):
            for each in secrets:
                text = each.hide(text)
            yield {"type": "text", "content": text[:longest]}
        elif isinstance(part, Mapping):  # of an image or audio, only the type is recorded
            yield {"type": str(part.get("type", "unknown"))[:64]}
