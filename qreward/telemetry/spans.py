"""``CallWatcher`` records the engine's calls and attempts as spans and metrics.

Each call is one CLIENT span, from the creation of the call to its end. Depending on the settings, the attempts of a call are INTERNAL
spans. The parent of a call's span is taken from the caller's context, even if another thread or task sends the request. Nothing is stored
for a call that no provider records. This module also provides the headers of the program's propagators for each attempt
(``AttemptScope``).
"""

from __future__ import annotations

from contextvars import Token
from dataclasses import dataclass
from functools import lru_cache, partial
from time import time_ns
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_tracer_provider, set_span_in_context

from qreward.engine.instrumentation import End, error_of, model_of, operation_of, outcome_of, queued, route_of, type_of
from qreward.observers import CARRIED
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome
from qreward.scheduler.source import Source
from qreward.scheduler.task import Attempt, Task
from qreward.telemetry import names
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
    metadata_of,
    rejection,
    start_at,
)
from qreward.telemetry.metrics import CHECK_INTERVAL, is_active
from qreward.telemetry.telemetry import Telemetry


def propagated_headers(context: Context) -> dict[str, str] | None:
    """Return the headers that the program's propagators write for a context; None if there are no headers, or a propagator fails."""
    headers: dict[str, str] = {}
    try:
        propagate.inject(headers, context)
    except Exception:  # raised by the program's own propagator
        return None
    return {name: text for name, text in headers.items() if isinstance(text, str) and text.isascii() and text.isprintable()} or None


class AttemptScope:
    """The scope in which an attempt is sent (see ``qreward.engine.instrumentation``).

    Instrumentations of HTTP clients find their parent span in the context of this scope.

    Args:
        context: the context of the call to which the attempt belongs.
        propagates: whether ``traceparent`` and all other headers of the program's propagators are sent.

    Attributes:
        span: the span of the attempt; None if the attempt has no span and uses the span of its call.
    """

    __slots__ = ("_attached", "_carried", "_context", "_propagates", "_started", "span")

    def __init__(self, context: Context, *, propagates: bool) -> None:
        self.span: Span | None = None
        self._context = context
        self._propagates = propagates
        self._started = time_ns()
        self._attached: Any = None
        self._carried: Token[Any] | None = None

    def begin(self, tracer: Tracer, attempt: Attempt, address: ServerAddress) -> None:
        """Start a span for the attempt. The span begins at the start time of the attempt."""
        attributes = {names.ATTEMPT_NUMBER: attempt.number, names.ATTEMPT_TYPE: type_of(attempt), **address.attributes}
        self.span = tracer.start_span(names.ATTEMPT, self._context, SpanKind.INTERNAL, attributes, (), self._started)
        self._context = set_span_in_context(self.span, self._context)

    def enter(self) -> None:
        """Attach the context. This method is called in the task that sends the attempt."""
        if self._propagates:
            self._carried = CARRIED.set(propagated_headers(self._context))
        self._attached = attach(self._context)

    def leave(self) -> None:
        """Detach the context. This method is called in the task that called ``enter``."""
        if self._carried is not None:
            CARRIED.reset(self._carried)
        detach(self._attached)


@dataclass(slots=True, eq=False)
class CallState:
    """The state of a call that is recorded.

    Attributes:
        kind: the attributes that the call shares with similar calls.
        span: the span of the call, which may not be recorded.
        context: the context in which the attempts are sent; None if there is nothing to propagate.
        start_address: the endpoint of the call, if only one endpoint can serve it. The span then starts with the attributes of this
            endpoint. None if several endpoints can serve the call.
        address: the endpoint of the last attempt.
        recording: True if the span is recorded.
        metered: True if the metrics of the call are recorded.
        merged: True if the call is an item of a merged request. The merged request records the usage.
        first: seconds until the first chunk of the answer; None before the first chunk.
        idle_since: time on the engine's clock since which no attempt has been in flight.
        idle: total seconds between attempts in which no attempt was in flight; None before the first retry.
    """

    kind: CallKind
    span: Span
    context: Context | None
    start_address: ServerAddress | None
    address: ServerAddress | None
    recording: bool
    metered: bool
    merged: bool = False
    first: float | None = None
    idle_since: float | None = None
    idle: float | None = None

    def at(self, source: Source) -> ServerAddress:
        """Return the address of one of the call's endpoints."""
        address = self.address
        return address if address is not None and address.name == source.name else address_of(source)


class CallWatcher:
    """Records the calls of a client as spans and metrics, according to the client's ``Telemetry``."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer, self._meters, self._content = telemetry.tracer, telemetry.instruments, telemetry.content
        self._tracer_provider, self._chunks, self._propagates = telemetry.tracer_provider, telemetry.chunks, telemetry.propagate
        self._kind_of = lru_cache(1024)(partial(CallKind, provider=telemetry.provider, providers=telemetry.providers))
        self._always, self._auto = telemetry.attempts == "always", telemetry.attempts == "auto"
        self._tracing, self._checked_at = False, -1.0
        self._quiet: object = None  # the context of the caller for whom nothing was recorded
        self._quiet_since = 0.0
        self._last_params: tuple[Any, Attributes] = None, {}
        self._closed: dict[str, float] = {}  # endpoint -> the known end of its cooldown

    # the Watcher protocol

    def began(self, task: Task, now: float) -> bool:
        """Start the span of a call that was made. Return False if nothing is recorded or propagated for the call."""
        context = task.waiter.context
        if context is self._quiet and 0 <= now - self._quiet_since < CHECK_INTERVAL:  # as just before, for another item of the batch
            return False
        metered, parent = self._meters.live(now), context.run(get_current)
        if not (self._tracing or metered or parent or self._is_tracing(now)):
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
        """Record that an attempt is about to be sent."""
        task = attempt.task
        call: CallState | None = task.span
        if call is None:
            return
        call.address = call.at(attempt.source)
        if attempt.number == 1:
            if task.feed is None and call.metered:
                self._meters.queue_wait.record(queued(task, attempt.sent_at), call.kind.queue)
        elif not attempt.hedge:
            call.idle = (call.idle or 0.0) + (0.0 if call.idle_since is None else attempt.sent_at - call.idle_since)
            call.idle_since = None
        if call.context is not None:
            attempt.span = AttemptScope(call.context, propagates=self._propagates)
            if call.recording and (self._always or (self._auto and attempt.number > 1)):
                attempt.span.begin(self._tracer, attempt, call.address)

    def first(self, attempt: Attempt, now: float) -> None:
        """Record that the first chunk of an answer arrived. The first chunk after a restart of the stream is not recorded."""
        call: CallState | None = attempt.task.span
        if call is None or call.first is not None:
            return
        call.first = now - attempt.task.born
        if call.metered:
            self._meters.first_chunk.record(call.first, call_point(call.kind, address_of(attempt.source)))

    def gaps(self, attempt: Attempt, gaps: list[float]) -> None:
        """Record the seconds between chunks of an answer."""
        call: CallState | None = attempt.task.span
        if call is None or not (self._chunks and call.metered):
            return
        point = call_point(call.kind, address_of(attempt.source))
        for gap in gaps:
            self._meters.per_chunk.record(gap, point)

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """Record that an attempt ended."""
        task = attempt.task
        call: CallState | None = task.span
        if call is None:
            return
        if task.attempt is None and not attempt.won:
            call.idle_since = now
        plain = attempt.won and task.sends == 1 and not self._always  # such an attempt has no separate span
        if plain and not call.metered:
            return
        result, error = outcome_of(attempt, outcome), error_of(attempt, outcome)
        failure = None if error is None else error_type(error)
        address = call.at(attempt.source)
        if call.metered:
            point = attempt_point(call.kind, address, type_of(attempt), result, failure)
            self._meters.attempt_duration.record(now - attempt.sent_at, point)
            if isinstance(outcome, Failure) and outcome.kind is FailureKind.OVERLOADED:
                self._record_cooldown(attempt.source, address, now)
        if call.recording and not plain:
            self._end_attempt(attempt, address, result, error, failure)

    def done(self, task: Task, end: End, source: Source | None, now: float) -> None:
        """Record that a call ended, and end its span."""
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
        if error is not None:
            self._content.record_exception(error, call.context)
        if call.recording:
            attributes = self._end_attributes(task, call, end, metadata, failure, now)
            if self._content.wanted:
                self._content.record(task, end, metadata, call.kind, call.context, attributes)
            call.span.set_attributes(attributes)
            if error is not None:
                call.span.set_status(Status(StatusCode.ERROR, error_description(error)))
            call.span.end()

    # spans

    def _is_tracing(self, now: float) -> bool:
        """Return whether the tracer provider records spans. The provider is checked at most every ``CHECK_INTERVAL`` seconds."""
        if not 0 <= now - self._checked_at < CHECK_INTERVAL:
            self._checked_at = now
            self._tracing = is_active(self._tracer_provider or get_tracer_provider())
        return self._tracing

    def _end_attempt(self, attempt: Attempt, address: ServerAddress, result: str, error: Any, failure: str | None) -> None:
        scope: AttemptScope | None = attempt.span
        if scope is None or not (scope.span is not None or self._auto):
            return
        if scope.span is None:  # with "auto", the end of the attempt shows that it gets a span
            scope.begin(self._tracer, attempt, address)
        assert scope.span is not None
        status = 200 if result in ("won", "discarded") else getattr(error, "status_code", None)  # 200 stands for any status 2xx
        found = {names.ATTEMPT_OUTCOME: result, names.STATUS_CODE: status, names.ERROR_TYPE: failure}
        scope.span.set_attributes({name: value for name, value in found.items() if value is not None})
        if error is not None:
            scope.span.set_status(Status(StatusCode.ERROR, error_description(error)))
        scope.span.end()

    def _end_attributes(
        self, task: Task, call: CallState, end: End, metadata: ResponseMetadata, failure: str | None, now: float
    ) -> Attributes:
        found = {**self._params(task), names.ATTEMPT_COUNT: task.sends, names.QUEUE_WAIT_TIME: queued(task, now)}
        address = call.address
        if address is not None:
            found |= address.endpoint if address is call.start_address else address.attributes | call.kind.provider_at(address)
        if task.sends > 1:
            found[names.HEDGE_COUNT] = task.copies
        if call.first is not None:
            found[names.TIME_TO_FIRST_CHUNK] = call.first
        if failure is not None:
            found[names.ERROR_TYPE] = failure
            if call.first is not None:
                found[names.FINISH_REASONS] = ("error",)
        elif isinstance(end, Answer):
            known: Attributes = {
                names.RESPONSE_ID: metadata.id,
                names.RESPONSE_MODEL: metadata.model,
                names.FINISH_REASONS: metadata.reasons or None,
                names.FINGERPRINT: metadata.fingerprint,
            }
            if not call.merged:  # otherwise, the span of the merged request records the tokens
                known[names.INPUT_TOKENS], known[names.OUTPUT_TOKENS] = end.prompt_tokens, end.output_tokens
                known[names.CACHE_READ_TOKENS], known[names.REASONING_TOKENS] = metadata.cached, metadata.reasoning
            found |= {name: value for name, value in known.items() if value is not None}
        return found

    def _params(self, task: Task) -> Attributes:
        """Return the parameters of a request as attributes. For a batch, the attributes are computed only once."""
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
        if call.idle is not None:
            meters.retry_delay.record(call.idle, kind.model)
        if isinstance(end, BaseException) and not task.sends and not call.merged:
            meters.queue_rejections.add(1, {names.REJECTION_REASON: rejection(end)})
        if end is None:  # cancelled by its caller: neither a success nor a failure
            return
        if not task.items:  # the items of a merged request record their own durations
            duration = meters.duration if kind.inference else meters.other_duration or meters.duration
            duration.record(now - task.born, call_point(kind, address, metadata.model, failure))
        if isinstance(end, Answer) and not call.merged:
            self._record_tokens(kind, end, metadata, address)

    def _record_tokens(self, kind: CallKind, answer: Answer, metadata: ResponseMetadata, address: ServerAddress | None) -> None:
        meters = self._meters
        counts = (("input", answer.prompt_tokens), ("output", answer.output_tokens))
        if meters.tokens is not None:
            for token, count in counts:
                if count is not None:
                    meters.tokens.record(count, call_point(kind, address, metadata.model, None, token))
        elif kind.inference:
            point = call_point(kind, address, metadata.model)
            for token, count in (*counts, ("cache_read", metadata.cached), ("reasoning", metadata.reasoning)):
                if count is not None:
                    getattr(meters, f"{token}_total").add(count, point | {names.TOKEN_MODALITY: "unknown"})
                    if token in ("input", "output"):
                        getattr(meters, f"{token}_tokens").record(count, point)

    def _record_cooldown(self, source: Source, address: ServerAddress, now: float) -> None:
        """Record by how many seconds a rejection extends the known cooldown of an endpoint."""
        until, known = source.cooldown.opens_at, max(now, self._closed.get(address.name, now))
        if until > known:
            self._closed[address.name] = until
            self._meters.rate_limit_wait.record(until - known, address.attributes)
