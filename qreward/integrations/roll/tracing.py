"""Continues the trace of a ROLL pipeline in a reward worker.

ROLL sends the trace context with the data, but attaches it in sync methods only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate

CARRIER = "_otel_ctx"
"""Key of ``DataProto.meta_info`` in which ROLL stores W3C ``traceparent`` and ``tracestate``."""


@contextmanager
def continued(meta_info: Mapping[str, Any] | None) -> Iterator[None]:
    """Make spans that start inside children of the caller's span. Enter it in the task of the call: each call has its own context."""
    carrier = (meta_info or {}).get(CARRIER)
    if not carrier:
        yield
        return
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
