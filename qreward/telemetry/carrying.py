"""What an attempt carries upstream: the headers that the program's propagators write for its context."""

from __future__ import annotations

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

STANDARD = {"traceparent", "tracestate", "baggage"}
"""Headers of the propagators that a program has if it sets none."""

_plain: tuple[object, bool] = (None, False)


def headers_of(context: Context, span: SpanContext) -> dict[str, str] | None:
    """The headers, or None if there are none. A propagator that fails writes nothing.

    Args:
        span: of the span that the context holds. Where it holds nothing else, and the propagators are the standard ones, what
            they would write is written here, in a third of the time.
    """
    if len(context) == 1 and span.is_valid and not span.trace_state and _is_plain():
        return {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}  # W3C Trace Context, level 1
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier, context)
    except Exception:  # it is the program's
        return None
    return {name: text for name, text in carrier.items() if _sendable(text)} or None


def _is_plain() -> bool:
    """Whether the program has the standard propagators, and no others."""
    global _plain  # noqa: PLW0603 - what was found of the one that was there last
    propagator = propagate.get_global_textmap()
    if _plain[0] is not propagator:
        _plain = propagator, type(propagator).__module__.startswith("opentelemetry.") and propagator.fields == STANDARD
    return _plain[1]


def _sendable(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable()
