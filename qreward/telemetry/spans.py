"""``CallWatcher`` records the calls and attempts of the engine as spans and metrics. Nothing is kept of a call that nobody records."""

from __future__ import annotations

from contextlib import suppress
from contextvars import Token
from dataclasses import dataclass
from functools import lru_cache, partial
from time import time_ns
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_tracer_provider, set_span_in_context

from qreward.engine.instrumentation import End, error_of, model_of, operation_of, outcome_of, queued, type_of
from qreward.observers import CARRIED
from qreward.scheduler.outcome import Answer, Outcome
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, Task
from qreward.scheduler.why import route_of
from qreward.telemetry.attributes import (
    NOTHING,
    Attributes,
    CallKind,
    ResponseMetadata,
    ServerAddress,
    address_of,
    attempt_point,
    attributes_of,
    call_point,
    error_description,
    error_type,
    known,
    messages_of,
    metadata_of,
    rejection,
    start_at,
)
from qreward.telemetry.metrics import CHECK_INTERVAL, is_active
from qreward.telemetry.telemetry import Telemetry


class AttemptScope:
    """The context in which an attempt is sent, so that other instrumentations find their parent. Without a span, it is that of the call."""

    __slots__ = ("_attached", "_carried", "_context", "_propagates", "_started", "span")

    def __init__(self, context: Context, *, propagates: bool) -> None:
        self.span: Span | None = None
        self._context = context
        self._propagates = propagates
        self._started = time_ns()
        self._attached: Any = None
        self._carried: Token[Any] | None = None

    def begin(self, tracer: Tracer, attempt: Attempt, address: ServerAddress) -> None:
        attributes = {"qreward.attempt.number": attempt.number, "qreward.attempt.type": type_of(attempt), **address.attributes}
        self.span = tracer.start_span("attempt", self._context, SpanKind.INTERNAL, attributes, (), self._started)
        self._context = set_span_in_context(self.span, self._context)

    def enter(self) -> None:
        if self._propagates:
            headers: dict[str, str] = {}
            with suppress(Exception):  # raised by the program's own propagator
                propagate.inject(headers, self._context)
            sendable = {name: text for name, text in headers.items() if isinstance(text, str) and text.isascii() and text.isprintable()}
            self._carried = CARRIED.set(sendable or None)
        self._attached = attach(self._context)

    def leave(self) -> None:
        if self._carried is not None:
            CARRIED.reset(self._carried)
        detach(self._attached)


@dataclass(slots=True, eq=False)
class CallState:
    kind: CallKind
    span: Span
    context: Context | None  # the context of its attempts; None if there is nothing to propagate
    start_address: ServerAddress | None  # its only possible endpoint, with which the span begins
    address: ServerAddress | None  # the endpoint of the last attempt
    recording: bool  # the span is recorded
    metered: bool  # the metrics are recorded
    merged: bool = False  # it is an item of a merged request, which records the usage
    first: float | None = None  # seconds until the first chunk

    def at(self, source: Source) -> ServerAddress:
        address = self.address
        return address if address is not None and address.name == source.name else address_of(source)


class CallWatcher:
    """Records the calls of a client as spans and metrics, according to the client's ``Telemetry``."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer, self._meters, self._telemetry = telemetry.tracer, telemetry.instruments, telemetry
        self._kind_of = lru_cache(1024)(partial(CallKind, provider=telemetry.provider, providers=telemetry.providers))
        self._tracing, self._checked_at = False, -1.0
        self._quiet: object = None  # the context of the caller for whom nothing was recorded
        self._quiet_since = 0.0
        self._last_params: tuple[Any, Attributes] = None, {}

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
        sources, items = task.pool.sources, [item.span for item in task.items if item.span is not None]
        address = address_of(sources[0]) if len(sources) == 1 else None
        links = [Link(item.span.get_span_context()) for item in items if item.recording]
        span = self._tracer.start_span(
            kind.name, parent, SpanKind.CLIENT, kind.start if address is None else start_at(kind, address), links
        )
        recording = span.is_recording()
        carries = recording or bool(parent) or span.get_span_context().is_valid
        if not (carries or metered):
            return False
        carried = set_span_in_context(span, parent) if carries else None
        task.span = CallState(kind, span, carried, address, address, recording, metered)
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
        call.address = call.at(attempt.source)
        if attempt.number == 1 and task.feed is None and call.metered:
            self._meters.queue_wait.record(queued(task, attempt.sent_at), call.kind.queue)
        if call.context is not None:
            attempt.span = AttemptScope(call.context, propagates=self._telemetry.propagate)
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
        address = call.at(attempt.source)
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
            call.address = call.at(source)
        metadata = metadata_of(end.value) if isinstance(end, Answer) and (call.metered or call.recording) else NOTHING
        error = end if isinstance(end, BaseException) else None
        failure = None if error is None else error_type(error)
        if call.metered:
            self._record_metrics(task, call, end, metadata, failure, now)
        if call.recording:
            found = self._end_attributes(task, call, end, metadata, now)
            if failure is not None:
                found["error.type"] = failure
            if self._telemetry.capture_content:
                longest, inference = self._telemetry.content_length, call.kind.inference
                found |= messages_of(task, end, metadata.reasons, longest, with_output=inference)
            end_span(call.span, found, error)

    def _end_attributes(self, task: Task, call: CallState, end: End, metadata: ResponseMetadata, now: float) -> Attributes:
        found = {**self._params(task), "qreward.attempt.count": task.sends, "qreward.queue.wait_time": queued(task, now)}
        address = call.address
        if address is not None:
            found |= address.endpoint if address is call.start_address else address.attributes | call.kind.provider_at(address)
        if task.sends > 1:
            found["qreward.hedge.count"] = task.copies
        if call.first is not None:
            found["gen_ai.response.time_to_first_chunk"] = call.first
            if isinstance(end, BaseException):
                found["gen_ai.response.finish_reasons"] = ("error",)
        if isinstance(end, Answer):
            found |= metadata.attributes(None if call.merged else end)  # the span of a merged request records the tokens
        return found

    def _params(self, task: Task) -> Attributes:
        params = getattr(task.payload, "params", None)
        if not params:
            return {}
        if task.feed is None:
            return attributes_of(params)
        if params is not self._last_params[0]:
            self._last_params = params, attributes_of(params)
        return self._last_params[1]

    # metrics

    def _record_metrics(self, task: Task, call: CallState, end: End, metadata: ResponseMetadata, failure: str | None, now: float) -> None:
        meters, kind, address = self._meters, call.kind, call.address
        if isinstance(end, BaseException) and not task.sends and not call.merged:
            meters.queue_rejections.add(1, {"qreward.queue.rejection.reason": rejection(end)})
        if end is None:  # cancelled by its caller: neither a success nor a failure
            return
        if not task.items:  # the items of a merged request record their own durations
            meters.duration.record(now - task.born, call_point(kind, address, metadata.model, failure))
        if isinstance(end, Answer) and not call.merged:
            for token, count in (("input", end.prompt_tokens), ("output", end.output_tokens)):
                if count is not None:
                    meters.tokens.record(count, call_point(kind, address, metadata.model, None, token))


def end_span(span: Span | None, attributes: Attributes, error: BaseException | None) -> None:
    assert span is not None
    span.set_attributes(attributes)
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error_description(error)))
    span.end()
