"""``CallWatcher`` records the calls and attempts of the engine as spans and metrics. Nothing is kept of a call that nobody records.

The attributes follow the GenAI conventions v1.41. They hold no content unless the program asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Token
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import isfinite
from time import time_ns
from typing import Any

import msgspec
from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_tracer_provider, set_span_in_context

from qreward import errors
from qreward.engine.instrumentation import End, error_of, model_of, operation_of, outcome_of, queued, type_of
from qreward.observers import CARRIED
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, Task
from qreward.scheduler.why import route_of
from qreward.telemetry.telemetry import CACHED, CHECK_INTERVAL, Attributes, ServerAddress, Telemetry, address_of, is_active, known
from qreward.transport.connection_settings import Secrets, secrets_of


class CallKind:
    """The attributes that all calls with the same operation, model and route share. ``start`` is known when a span starts, for samplers."""

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
def call_point(
    kind: CallKind, address: ServerAddress | None, model: str | None = None, error: str | None = None, token: str | None = None
) -> Attributes:
    where = {} if address is None else address.server | kind.provider_at(address)
    return kind.metric | where | known({"gen_ai.response.model": model, "error.type": error, "gen_ai.token.type": token})


@lru_cache(CACHED)
def attempt_point(kind: CallKind, address: ServerAddress, attempt_type: str, outcome: str, error: str | None) -> Attributes:
    what = {"qreward.attempt.type": attempt_type, "qreward.attempt.outcome": outcome, **kind.model}
    return what | address.attributes | known({"error.type": error})


@dataclass(slots=True, eq=False)
class AttemptScope:
    """The context in which an attempt is sent, so that other instrumentations find their parent. Without a span, it is that of the call."""

    _context: Context
    _propagates: bool
    span: Span | None = None
    _started: int = field(default_factory=time_ns)
    _attached: Any = None
    _carried: Token[Any] | None = None

    def begin(self, tracer: Tracer, attempt: Attempt, address: ServerAddress) -> None:
        attributes = {"qreward.attempt.number": attempt.number, "qreward.attempt.type": type_of(attempt), **address.attributes}
        self.span = tracer.start_span("attempt", self._context, SpanKind.INTERNAL, attributes, (), self._started)
        self._context = set_span_in_context(self.span, self._context)

    def __enter__(self) -> None:
        if self._propagates:
            headers: dict[str, str] = {}
            with suppress(Exception):  # raised by the program's own propagator
                propagate.inject(headers, self._context)
            sendable = {name: text for name, text in headers.items() if isinstance(text, str) and text.isascii() and text.isprintable()}
            self._carried = CARRIED.set(sendable or None)
        with suppress(Exception):
            self._attached = attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is GeneratorExit:  # the coroutine was discarded, perhaps in another context, where this one cannot be left
            return
        if self._carried is not None:
            CARRIED.reset(self._carried)
        if self._attached is not None:
            with suppress(Exception):
                detach(self._attached)


@dataclass(slots=True, eq=False)
class CallState:
    kind: CallKind
    span: Span
    context: Context | None  # the context of its attempts; None if there is nothing to propagate
    recording: bool  # the span is recorded
    metered: bool  # the metrics are recorded
    address: ServerAddress | None = None  # the endpoint of the last attempt
    merged: bool = False  # it is an item of a merged request, which records the usage
    first: float | None = None  # seconds until the first chunk


class CallWatcher:
    """Records the calls of a client as spans and metrics, according to the client's ``Telemetry``."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer, self._meters, self._telemetry = telemetry.tracer, telemetry.instruments, telemetry
        self._kind_of = lru_cache(1024)(partial(CallKind, provider=telemetry.provider, providers=telemetry.providers))
        self._tracing, self._checked_at = False, -1.0
        self._quiet: object = None  # the context of the caller for whom nothing was recorded
        self._quiet_since = 0.0

    # the Watcher protocol

    def began(self, task: Task, now: float) -> bool:
        """Start the span of a call that was made. Return False if nothing is recorded or propagated for the call."""
        context = task.waiter.context
        if context is self._quiet and 0 <= now - self._quiet_since < CHECK_INTERVAL:  # as just before, for another item of the batch
            return False
        metered, parent = self._meters.live(now), context.run(get_current)
        if not 0 <= now - self._checked_at < CHECK_INTERVAL and not (self._tracing or metered or parent):
            self._checked_at = now
            self._tracing = is_active(self._telemetry.tracer_provider or get_tracer_provider())
        if not (self._tracing or metered or parent):
            self._quiet, self._quiet_since = context, now
            return False
        kind = self._kind_of(operation_of(task), model_of(task), route_of(task.pool), task.streamed, len(task.items))
        items = [item.span for item in task.items if item.span is not None]
        links = [Link(item.span.get_span_context()) for item in items if item.recording]
        span = self._tracer.start_span(kind.name, parent, SpanKind.CLIENT, kind.start, links)
        recording = span.is_recording()
        carries = recording or bool(parent) or span.get_span_context().is_valid
        if not (carries or metered):
            return False
        carried = set_span_in_context(span, parent) if carries else None
        task.span = CallState(kind, span, carried, recording, metered)
        for item in items:
            item.merged = True
        if metered and task.items:
            self._meters.batch_size.record(len(task.items), kind.model)
        return True

    def sent(self, attempt: Attempt) -> None:
        task = attempt.task
        call: CallState | None = task.span
        if call is None:
            return
        call.address = address_of(attempt.source)
        if attempt.number == 1 and task.feed is None and call.metered:
            self._meters.queue_wait.record(queued(task, attempt.sent_at), call.kind.queue)
        if call.context is not None:
            attempt.span = AttemptScope(call.context, self._telemetry.propagate)
            if call.recording and attempt.number > 1:
                attempt.span.begin(self._tracer, attempt, call.address)

    def first(self, attempt: Attempt, now: float) -> None:
        call: CallState | None = attempt.task.span
        if call is None or call.first is not None:  # the first chunk after a restart of the stream is not recorded
            return
        call.first = now - attempt.task.born
        if call.metered:
            self._meters.first_chunk.record(call.first, call_point(call.kind, address_of(attempt.source)))

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        task = attempt.task
        call: CallState | None = task.span
        if call is None:
            return
        plain = attempt.won and task.sends == 1  # such an attempt has no span of its own
        if plain and not call.metered:
            return
        result, error = outcome_of(attempt, outcome), error_of(attempt, outcome)
        failure = None if error is None else error_type(error)
        address = address_of(attempt.source)
        if call.metered:
            point = attempt_point(call.kind, address, type_of(attempt), result, failure)
            self._meters.attempt_duration.record(now - attempt.sent_at, point)
        scope: AttemptScope | None = attempt.span
        if not call.recording or plain or scope is None:
            return
        if scope.span is None:  # only its end shows that a first attempt gets a span
            scope.begin(self._tracer, attempt, address)
        status = 200 if result in ("won", "discarded") else getattr(error, "status_code", None)  # 200 stands for any status 2xx
        found = known({"qreward.attempt.outcome": result, "http.response.status_code": status, "error.type": failure})
        end_span(scope.span, found, error)

    def done(self, task: Task, end: End, source: Source | None, now: float) -> None:
        call: CallState | None = task.span
        if call is None:
            return
        if source is not None:
            call.address = address_of(source)
        answer, error = (end if isinstance(end, Answer) else None), (end if isinstance(end, BaseException) else None)
        failure = None if error is None else error_type(error)
        metadata = metadata_of(answer.response) if answer is not None and (call.metered or call.recording) else {}
        if call.metered:
            self._record_metrics(task, call, end, metadata.get("gen_ai.response.model"), failure, now)
        if not call.recording:
            return
        found: Attributes = {
            "qreward.attempt.count": task.sends,
            "qreward.queue.wait_time": queued(task, now),
            "qreward.hedge.count": task.copies if task.sends > 1 else None,
            "gen_ai.response.time_to_first_chunk": call.first,
            "gen_ai.response.finish_reasons": None if failure is None or call.first is None else ("error",),  # a stream that broke off
            "error.type": failure,
        }
        if answer is not None and not call.merged:  # the span of a merged request records the tokens
            found["gen_ai.usage.input_tokens"] = answer.prompt_tokens
            found["gen_ai.usage.output_tokens"] = answer.output_tokens
            found["gen_ai.usage.cache_read.input_tokens"] = answer.cached_tokens
        where = {} if call.address is None else call.address.attributes | call.kind.provider_at(call.address)
        found = attributes_of(getattr(task.payload, "params", None) or {}) | where | known(found) | metadata
        if self._telemetry.capture_content:
            longest, inference = self._telemetry.content_length, call.kind.inference
            found |= messages_of(task, end, metadata.get("gen_ai.response.finish_reasons", ()), longest, with_output=inference)
        end_span(call.span, found, error)

    def _record_metrics(self, task: Task, call: CallState, end: End, model: str | None, failure: str | None, now: float) -> None:
        meters, kind, address = self._meters, call.kind, call.address
        if isinstance(end, BaseException) and not task.sends and not call.merged:
            meters.queue_rejections.add(1, {"qreward.queue.rejection.reason": rejection(end)})
        if end is None:  # cancelled by its caller: neither a success nor a failure
            return
        if not task.items:  # the items of a merged request record their own durations
            meters.duration.record(now - task.born, call_point(kind, address, model, failure))
        if isinstance(end, Answer) and not call.merged:
            for token, count in (("input", end.prompt_tokens), ("output", end.output_tokens)):
                if count is not None:
                    meters.tokens.record(count, call_point(kind, address, model, None, token))


def end_span(span: Span | None, attributes: Attributes, error: BaseException | None) -> None:
    assert span is not None
    span.set_attributes(attributes)
    if error is not None:  # its message is left out, because it may quote a prompt
        kind = type(error)
        meaning = (kind.__doc__ or "").partition("\n")[0] if kind.__module__ == errors.__name__ else ""
        span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {meaning}" if meaning else kind.__name__))
    span.end()


# answers

MAX_BODY = 1 << 20
"""Maximum number of bytes of an answer that is parsed again. Larger answers, such as lists of vectors, are not parsed."""
MAX_TEXT = 256
"""Maximum number of characters of a text that is taken from an answer."""


class _Choice(msgspec.Struct, gc=False):
    index: Any = None
    finish_reason: Any = None


class _Body(msgspec.Struct, gc=False):
    id: Any = None
    model: Any = None
    system_fingerprint: Any = None
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Body)


def metadata_of(value: Any) -> Attributes:
    """Return the attributes of an answer beside its tokens. The body of an answer, and each kept chunk of a stream, are parsed again."""
    body, heads = getattr(value, "body", None), getattr(value, "heads", None)
    found, reasons = Attributes(), list[object]() if heads is None else value.endings()
    for each in [body] if type(body) is bytes else [] if heads is None else heads():
        try:
            seen = _DECODER.decode(each) if len(each) <= MAX_BODY else _Body()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if heads is None:
            choices = sorted(seen.choices or (), key=lambda choice: choice.index if type(choice.index) is int else 0)
            reasons = [choice.finish_reason for choice in choices]
        details = (seen.usage or {}).get("completion_tokens_details")
        reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else None
        chunk = {
            "gen_ai.response.id": _text(seen.id),
            "gen_ai.response.model": _text(seen.model),
            "openai.response.system_fingerprint": _text(seen.system_fingerprint),
            "gen_ai.usage.reasoning.output_tokens": reasoning if type(reasoning) is int else None,
        }
        found = known(chunk) | found
    known_reasons = tuple(filter(None, map(_text, reasons)))
    return found | {"gen_ai.response.finish_reasons": known_reasons} if known_reasons else found


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


# requests

MAX_STOPS = 8
"""Maximum number of stop sequences that are recorded."""
MAX_REQUEST_TEXT = 64
"""Maximum number of characters of a stop sequence or a reasoning level that are recorded."""


def attributes_of(params: Mapping[str, Any]) -> Attributes:
    read = ((name, value(params[param])) for param, (name, value) in _PARAMETERS.items() if param in params)
    return {name: value for name, value in read if value is not None}


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
    for kind, name in _ERROR_TYPES:
        if isinstance(error, kind):
            return name
    return f"{errors.__name__}.{type(error).__name__}" if type(error).__module__ == errors.__name__ else "_OTHER"


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
    if with_output and isinstance(end, Answer) and (text := end.response.text()):
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
