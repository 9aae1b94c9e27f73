"""What is answered instead of rewards: one error with a status, a kind, words, and what the caller may do about it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

LONGEST_WAIT = 60.0
"""Seconds; nobody is sent away for longer, for the pace may change."""


class HTTPError(Exception):
    """A request that gets no rewards.

    Args:
        status: of the answer.
        kind: a word for programs, such as ``queue_full``.
        message: what happened, where, and what to change.
        headers: of the answer.
        more: further members of the error, such as ``where``.
    """

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or {}
        self.more = more

    def document(self) -> dict[str, Any]:
        """The body, in the form of OpenAI and vLLM."""
        return {"error": {"message": str(self), "type": self.kind, "code": self.status, **self.more}}


def busy(kind: str, message: str, seconds: float) -> HTTPError:
    """429, with when to come again: ``Retry-After`` in whole seconds, ``retry-after-ms`` exactly."""
    seconds = min(max(seconds, 0.001), LONGEST_WAIT)
    headers = {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}
    return HTTPError(429, kind, f"{message}; retry in {seconds:.3g} s", headers)


def draining() -> HTTPError:
    """503: the server is about to end."""
    return HTTPError(
        503, "draining", "the server is shutting down and takes no new requests; send them to another server", {"connection": "close"}
    )


def invalid(where: Sequence[str | int], message: str) -> HTTPError:
    """422, with the place in the body: ``["query", 3]``."""
    place = ".".join(map(str, where))
    return HTTPError(422, "invalid_request", f"{place}: {message}" if place else message, where=list(where))


def too_large(most: int) -> HTTPError:
    """413. The connection stays: what is still to come is read by the server and dropped, for who sends it to see the answer."""
    return HTTPError(413, "body_too_large", f"the request is longer than {most} bytes; send fewer completions at once")
