"""The error responses of the server. Each response has a status, a kind, and a message with advice. This module does no I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

LONGEST_WAIT = 60.0
"""Maximum retry time in seconds. Scoring may become faster, so callers should not wait longer."""


class HTTPError(Exception):
    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or {}
        self.more = more

    def document(self) -> dict[str, Any]:
        """Return the response body, in the format of OpenAI and vLLM."""
        return {"error": {"message": str(self), "type": self.kind, "code": self.status, **self.more}}


def busy(kind: str, message: str, seconds: float) -> HTTPError:
    """Return a 429 error with the retry time in two headers: ``Retry-After`` in seconds and ``retry-after-ms``. Both are rounded up."""
    seconds = min(max(seconds, 0.001), LONGEST_WAIT)
    headers = {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}
    return HTTPError(429, kind, f"{message}; retry in {seconds:.3g} s", headers)


def draining() -> HTTPError:
    message = "the server is shutting down and takes no new requests; send them to another server"
    return HTTPError(503, "draining", message, {"connection": "close"})


def invalid(where: Sequence[str | int], message: str) -> HTTPError:
    """Return a 422 error with the place in the body, such as ``["query", 3]``."""
    place = ".".join(map(str, where))
    return HTTPError(422, "invalid_request", f"{place}: {message}" if place else message, where=list(where))
