"""One attempt as telemetry sees it: the context in which it is sent, what it carries upstream, and its span, if it has one."""

from __future__ import annotations

from contextvars import Token
from time import time_ns
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from qreward.observe import CARRIED
from qreward.telemetry import names
from qreward.telemetry.carrying import headers_of


class Trial:
    """The scope of an attempt (see ``qreward.engine.watching``). Instrumentations of HTTP clients find their parent in it.

    Args:
        around: the context of its call.
        parent: the span of its call.
        propagates: it carries ``traceparent``, and whatever else the program's propagators write.

    Attributes:
        span: its own, or None if it is sent in that of its call.
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
        """Give it a span of its own, which began when it did."""
        self.span = tracer.start_span(names.ATTEMPT, self._context, SpanKind.INTERNAL, attributes, (), self._started)
        self._context = set_span_in_context(self.span, self._context)

    def end(self, attributes: dict[str, Any], wrong: str | None) -> None:
        """End its span; ``wrong`` says what went wrong, if anything did."""
        assert self.span is not None
        self.span.set_attributes(attributes)
        if wrong is not None:
            self.span.set_status(Status(StatusCode.ERROR, wrong))
        self.span.end()

    # the scope

    def enter(self) -> None:
        """In the task that sends it."""
        if self._propagates:
            span = self._parent if self.span is None else self.span
            self._carried = CARRIED.set(headers_of(self._context, span.get_span_context()))
        self._token = attach(self._context)

    def leave(self) -> None:
        """In the same task."""
        if self._carried is not None:
            CARRIED.reset(self._carried)
        detach(self._token)
