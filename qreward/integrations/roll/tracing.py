"""The trace of a ROLL pipeline goes on in a reward worker: ROLL sends its context with the data, and attaches it in sync methods only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate

CARRIER = "_otel_ctx"
"""Key of ``DataProto.meta_info`` under which ROLL puts W3C ``traceparent`` and ``tracestate``."""


@contextmanager
def continued(meta_info: Mapping[str, Any] | None) -> Iterator[None]:
    """Spans that begin inside are children of the caller's span. To be entered in the task of the call, as each call has its own."""
    carrier = (meta_info or {}).get(CARRIER)
    if not carrier:
        yield
        return
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
