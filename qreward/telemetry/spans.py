"""``CallWatcher`` records the engine's calls and attempts as spans and metrics.

Each call is one CLIENT span, from its creation to its end. Its attempts are INTERNAL spans, depending on the settings. The parent of a call
is the context of the call's waiter, which is the caller's, whatever thread or task sends it. Nothing is stored for a call that no provider
records. This module also provides the headers of the program's propagators for each attempt (``Trial``), and defines the
instrumentation scope of all spans, metrics and events.
"""

from __future__ import annotations

from contextvars import Token
from functools import cache
from importlib import metadata
from time import time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, get_tracer_provider, set_span_in_context

from qreward.engine.instrumentation import End, error_of, outcome_of, queued, type_of
from qreward.observers import CARRIED
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome
from qreward.scheduler.state import Attempt, Source, Task
from qreward.telemetry import names
from qreward.telemetry.attributes import (
    NOTHING,
    CallKind,
    Kinds,
    ResponseMetadata,
    ServerAddress,
    attributes_of,
    error_type,
    facts_of,
    place_of,
    rejection,
    said,
)

if TYPE_CHECKING:
    from qreward.telemetry.telemetry import Telemetry

STANDARD = {"traceparent", "tracestate", "baggage"}
"""Headers of the propagators that a program has by default."""

_plain: tuple[object, bool] = (None, False)


def headers_of(context: Context, span: SpanContext) -> dict[str, str] | None:
    """The headers that the program's propagators write for a context, or None if there are none or a propagator fails.

    Args:
        context: the context of an attempt.
        span: context of the span in ``context``. If ``context`` contains nothing else and the propagators are the standard ones, their
            header is built here, in a third of the time.
    """
    if len(context) == 1 and span.is_valid and not span.trace_state and _is_plain():
        return {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}  # W3C Trace Context, level 1
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier, context)
    except Exception:  # raised by the program's own propagator
        return None
    return {name: text for name, text in carrier.items() if _sendable(text)} or None


def _is_plain() -> bool:
    """Whether the program uses exactly the standard propagators."""
    global _plain  # noqa: PLW0603 - the result for the last propagator
    propagator = propagate.get_global_textmap()
    if _plain[0] is not propagator:
        _plain = propagator, type(propagator).__module__.startswith("opentelemetry.") and propagator.fields == STANDARD
    return _plain[1]


def _sendable(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable()


class Trial:
    """The scope in which an attempt is sent (see ``qreward.engine.instrumentation``).

    Instrumentations of HTTP clients find their parent span in its context.

    Args:
        around: the context of its call.
        parent: the span of its call.
        propagates: send ``traceparent`` and the other headers of the program's propagators.

    Attributes:
        span: the attempt's own span; None if it uses that of its call.
    """

    __slots__ = ("_carried", "_context", "_parent", "_propagates", "_started", "_token", "span")

    def __init__(self, around: Context, parent: Span, *, propagates: bool) -> None:
        self.span: Span | None = None
        self._context = around
        self._parent = parent
        self._propagates = propagates
        self._started = time_ns()
        self._token: Any = None
        self._carried: Token[Any] | None = None

    def begin(self, tracer: Tracer, attributes: dict[str, Any]) -> None:
        """Start a span for the attempt, with the attempt's start time."""
        self.span = tracer.start_span(names.ATTEMPT, self._context, SpanKind.INTERNAL, attributes, (), self._started)
        self._context = set_span_in_context(self.span, self._context)

    def end(self, attributes: dict[str, Any], wrong: str | None) -> None:
        """End the span. ``wrong`` is the error description, None for no error."""
        assert self.span is not None
        self.span.set_attributes(attributes)
        if wrong is not None:
            self.span.set_status(Status(StatusCode.ERROR, wrong))
        self.span.end()

    # the Scope protocol

    def enter(self) -> None:
        """Attach the context. Called in the task that sends the attempt."""
        if self._propagates:
            span = self._parent if self.span is None else self.span
            self._carried = CARRIED.set(headers_of(self._context, span.get_span_context()))
        self._token = attach(self._context)

    def leave(self) -> None:
        """Detach the context. Called in the same task."""
        if self._carried is not None:
            CARRIED.reset(self._carried)
        detach(self._token)


SCOPE = "qreward"

LOOK = 0.05
"""Seconds between two checks whether a provider has been set. Checks are made only when calls are made."""


@cache
def version() -> str:
    """The version of this library."""
    try:
        return metadata.version(SCOPE)
    except metadata.PackageNotFoundError:  # run from a source directory
        return ""


def does_something(provider: object) -> bool:
    """Whether a provider records anything. The providers of the API package do nothing, or nothing yet."""
    return not type(provider).__module__.startswith(_SILENT)


_SILENT = ("opentelemetry.metrics", "opentelemetry.trace")


NO_LINKS: tuple[Link, ...] = ()


class Live:
    """The state of a call that is recorded.

    Attributes:
        kind: the attributes that it shares with similar calls.
        span: its span, which may not be recording.
        recording: True if its span is recorded.
        metered: True if its metrics are recorded.
        context: the context in which its attempts are sent; None if there is nothing to propagate.
        merged: True if it is an item of a merged request, which records the usage.
        start_place: its endpoint, if only one can serve it; its span starts with the attributes of that endpoint.
        place: the endpoint of its last attempt.
        first: seconds until the first chunk of its answer.
        idle_since: since when it has no attempt in flight, on the engine's clock.
        idle: seconds without an attempt in flight between its attempts; None before its first retry.
    """

    __slots__ = ("context", "first", "idle", "idle_since", "kind", "merged", "metered", "place", "recording", "span", "start_place")

    def __init__(
        self, kind: CallKind, span: Span, context: Context | None, place: ServerAddress | None, *, recording: bool, metered: bool
    ) -> None:
        self.kind = kind
        self.span = span
        self.context = context
        self.recording = recording
        self.metered = metered
        self.merged = False
        self.place = self.start_place = place
        self.first: float | None = None
        self.idle_since: float | None = None
        self.idle: float | None = None

    def at(self, source: Source) -> ServerAddress:
        """The place of one of its endpoints."""
        place = self.place
        return place if place is not None and place.name == source.name else place_of(source)


class CallWatcher:
    """Records the calls of any number of clients according to its settings."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._set = telemetry
        self._tracer = telemetry.tracer
        self._meters = telemetry.instruments
        self._content = telemetry.content
        self._kinds = Kinds(telemetry.provider, telemetry.providers)
        self._always, self._auto = telemetry.attempts == "always", telemetry.attempts == "auto"
        self._propagates = telemetry.propagate
        self._tracing, self._looked_at = False, -1.0
        self._last_params: tuple[Any, dict[str, Any]] = None, {}
        self._closed: dict[str, float] = {}  # endpoint -> the known end of its cooldown

    # the Watcher protocol

    def began(self, task: Task, now: float) -> bool:
        """A call was made. Starts its span. Returns False if nothing is recorded or propagated for the call."""
        metered, parent = self._meters.live(now), task.waiter.context.run(get_current)
        if not (self._tracing or metered or parent or self._look(now)):
            return False
        kind = self._kinds.of(task)
        sources = task.pool.sources
        place = place_of(sources[0]) if len(sources) == 1 else None
        start = kind.start if place is None else kind.start_at(place)
        span = self._tracer.start_span(kind.name, parent, SpanKind.CLIENT, start, self._links(task) if task.items else NO_LINKS)
        recording = span.is_recording()
        carries = recording or bool(parent) or span.get_span_context().is_valid
        if not (carries or metered):
            return False
        task.span = Live(kind, span, set_span_in_context(span, parent) if carries else None, place, recording=recording, metered=metered)
        if task.items:
            self._merge(task, kind, metered=metered)
        return True

    def sent(self, attempt: Attempt) -> None:
        """An attempt is about to be sent."""
        task = attempt.task
        live: Live | None = task.span
        if live is None:
            return
        if live.place is None or live.place.name != attempt.source.name:
            live.place = place_of(attempt.source)
        if attempt.number == 1:
            if task.feed is None and live.metered:
                self._meters.queue_wait.record(queued(task, attempt.sent_at), live.kind.queue)
        elif not attempt.hedge:
            live.idle = (live.idle or 0.0) + (0.0 if live.idle_since is None else attempt.sent_at - live.idle_since)
            live.idle_since = None
        if live.context is not None:
            attempt.span = Trial(live.context, live.span, propagates=self._propagates)
            if live.recording and (self._always or (self._auto and attempt.number > 1)):
                attempt.span.begin(self._tracer, _attempt_start(attempt, live.place))

    def first(self, attempt: Attempt, now: float) -> None:
        """The first chunk of an answer arrived. The first chunk after a restart of the stream does not count."""
        live: Live | None = attempt.task.span
        if live is None or live.first is not None:
            return
        live.first = now - attempt.task.born
        if live.metered:
            self._meters.first_chunk.record(live.first, live.kind.call_point(place_of(attempt.source), None, None))

    def gaps(self, attempt: Attempt, gaps: list[float]) -> None:
        """Record the seconds between chunks of an answer."""
        live: Live | None = attempt.task.span
        if live is None or not (self._set.chunks and live.metered):
            return
        point = live.kind.call_point(place_of(attempt.source), None, None)
        for gap in gaps:
            self._meters.per_chunk.record(gap, point)

    def ended(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt ended."""
        task = attempt.task
        live: Live | None = task.span
        if live is None:
            return
        if task.attempt is None and not attempt.won:
            live.idle_since = now
        metered, plain = live.metered, attempt.won and task.sends == 1 and not self._always
        if plain and not metered:  # there is nothing to record
            return
        became, error = outcome_of(attempt, outcome), error_of(attempt, outcome)
        word = None if error is None else error_type(error)
        place = live.at(attempt.source)
        if metered:
            point = live.kind.attempt_point(place, type_of(attempt), became, word)
            self._meters.attempt_duration.record(now - attempt.sent_at, point)
            if isinstance(outcome, Failure) and outcome.kind is FailureKind.OVERLOADED:
                self._left_alone(attempt.source, place, now)
        if live.recording and not plain:
            self._end_attempt(attempt, place, became, error, word)

    def done(self, task: Task, end: End, source: Source | None, now: float) -> None:
        """A call ended. Ends its span."""
        live: Live | None = task.span
        if live is None:
            return
        place = live.place if source is None else live.at(source)
        metered = live.metered
        facts = facts_of(end.value) if isinstance(end, Answer) and (metered or live.recording) else NOTHING
        error = end if isinstance(end, BaseException) else None
        word = None if error is None else error_type(error)
        if metered:
            self._meter(task, live, end, facts, place, word, now)
        if error is not None:
            self._content.tell_exception(error, live.context)
        if live.recording:
            attributes = self._end_attributes(task, live, end, facts, place, word, now)
            if self._content.wanted:
                self._content.tell(task, end, facts, live, attributes)
            live.span.set_attributes(attributes)
            if error is not None:
                live.span.set_status(Status(StatusCode.ERROR, said(error)))
            live.span.end()

    # spans

    def _look(self, now: float) -> bool:
        """Whether spans are recorded by now. Checked every ``LOOK`` seconds."""
        if not 0 <= now - self._looked_at < LOOK:
            self._looked_at = now
            self._tracing = does_something(self._set.tracer_provider or get_tracer_provider())
        return self._tracing

    @staticmethod
    def _links(task: Task) -> list[Link]:
        return [Link(item.span.span.get_span_context()) for item in task.items if item.span is not None and item.span.recording]

    def _merge(self, task: Task, kind: CallKind, *, metered: bool) -> None:
        for item in task.items:
            if item.span is not None:
                item.span.merged = True
        if metered:
            self._meters.batch_size.record(len(task.items), kind.model)

    def _end_attempt(self, attempt: Attempt, place: ServerAddress, became: str, error: Any, word: str | None) -> None:
        trial: Trial | None = attempt.span
        if trial is None or not (trial.span is not None or self._auto):
            return
        if trial.span is None:  # with "auto", only now is it known that the attempt gets a span
            trial.begin(self._tracer, _attempt_start(attempt, place))
        attributes: dict[str, Any] = {names.ATTEMPT_OUTCOME: became}
        status = 200 if became in ("won", "discarded") else getattr(error, "status_code", None)  # 200 stands for all 2xx
        if status is not None:
            attributes[names.STATUS_CODE] = status
        if word is not None:
            attributes[names.ERROR_TYPE] = word
        trial.end(attributes, None if error is None else said(error))

    def _end_attributes(
        self, task: Task, live: Live, end: End, facts: ResponseMetadata, place: ServerAddress | None, word: str | None, now: float
    ) -> dict[str, Any]:
        found = {
            **self._params(task),
            names.ATTEMPT_COUNT: task.sends,
            names.QUEUE_WAIT_TIME: queued(task, now),
        }
        if place is not None:
            found |= place.endpoint if place is live.start_place else place.attributes | live.kind.provider_at(place)
        if task.sends > 1:
            found[names.HEDGE_COUNT] = task.copies
        if live.first is not None:
            found[names.TIME_TO_FIRST_CHUNK] = live.first
        if word is not None:
            found[names.ERROR_TYPE] = word
            if live.first is not None:
                found[names.FINISH_REASONS] = ("error",)
        elif isinstance(end, Answer):
            _add_answer(found, end, facts, used=not live.merged)
        return found

    def _params(self, task: Task) -> dict[str, Any]:
        """The parameters of a request as attributes; computed once for a batch."""
        params = getattr(task.payload, "params", None)
        if not params:
            return {}
        if task.feed is None:
            return attributes_of(params)
        known, found = self._last_params
        if params is not known:
            found = attributes_of(params)
            self._last_params = params, found
        return found

    # metrics

    def _meter(
        self, task: Task, live: Live, end: End, facts: ResponseMetadata, place: ServerAddress | None, word: str | None, now: float
    ) -> None:
        meters, kind = self._meters, live.kind
        if live.idle is not None:
            meters.retry_delay.record(live.idle, kind.model)
        if word is not None and not task.sends and isinstance(end, BaseException) and not live.merged:
            meters.queue_rejections.add(1, {names.REJECTION_REASON: rejection(end)})
        if end is None:  # cancelled by its caller: neither a success nor a failure
            return
        if not task.items:  # the items of a merged request record their own durations
            duration = meters.duration if kind.inference else meters.other_duration or meters.duration
            duration.record(now - task.born, kind.call_point(place, facts.model, word))
        if isinstance(end, Answer) and not live.merged:
            self._meter_tokens(kind, end, facts, place)

    def _meter_tokens(self, kind: CallKind, answer: Answer, facts: ResponseMetadata, place: ServerAddress | None) -> None:
        meters = self._meters
        counts = (("input", answer.prompt_tokens), ("output", answer.output_tokens))
        if meters.tokens is not None:
            for token, count in counts:
                if count is not None:
                    meters.tokens.record(count, kind.call_point(place, facts.model, None, token))
            return
        if not kind.inference:
            return
        point = kind.call_point(place, facts.model, None)
        for token, count in counts:
            if count is not None:
                getattr(meters, f"{token}_tokens").record(count, point)
        totals = (*counts, ("cache_read", facts.cached), ("reasoning", facts.reasoning))
        for token, count in totals:
            if count is not None:
                getattr(meters, f"{token}_total").add(count, point | {names.TOKEN_MODALITY: "unknown"})

    def _left_alone(self, source: Source, place: ServerAddress, now: float) -> None:
        """An endpoint rejected a request. Records by how many seconds this extends the endpoint's known cooldown."""
        until, known = source.cooldown.opens_at, self._closed.get(place.name, now)
        if until > max(now, known):
            self._closed[place.name] = until
            self._meters.rate_limit_wait.record(until - max(now, known), place.attributes)


def _attempt_start(attempt: Attempt, place: ServerAddress) -> dict[str, Any]:
    return {names.ATTEMPT_NUMBER: attempt.number, names.ATTEMPT_TYPE: type_of(attempt), **place.attributes}


def _add_answer(found: dict[str, Any], answer: Answer, facts: ResponseMetadata, *, used: bool) -> None:
    """Add the attributes of an answer. ``used`` adds token counts; it is False if another span records them."""
    said_of_itself, model, reasons, fingerprint, cached, reasoning = facts
    if said_of_itself is not None:
        found[names.RESPONSE_ID] = said_of_itself
    if model is not None:
        found[names.RESPONSE_MODEL] = model
    if reasons:
        found[names.FINISH_REASONS] = reasons
    if fingerprint is not None:
        found[names.FINGERPRINT] = fingerprint
    if not used:
        return
    if answer.prompt_tokens is not None:
        found[names.INPUT_TOKENS] = answer.prompt_tokens
    if answer.output_tokens is not None:
        found[names.OUTPUT_TOKENS] = answer.output_tokens
    if cached is not None:
        found[names.CACHE_READ_TOKENS] = cached
    if reasoning is not None:
        found[names.REASONING_TOKENS] = reasoning
