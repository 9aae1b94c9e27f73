"""The HTTP replies that an SDK receives: status, headers, and a body or server-sent events. This module uses no HTTP library.

Errors of this package become errors of the OpenAI API. Each error has the header ``x-should-retry: false``. The scheduler has already
queued, retried and hedged the request, so retries by the SDK would only multiply the load.

If a stream fails, its last event has an ``error``, and SDKs raise this error. Some programs do not check events for errors. For these
programs, the connection breaks after the event. A failed stream therefore never looks like a short answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Container, Iterable
from typing import Any, NamedTuple

import msgspec

from qreward import errors
from qreward.codecs import json as jsonio
from qreward.codecs.chat_stream import ChatChunk, tells_usage_only
from qreward.codecs.error_body import ErrorBody, is_too_long
from qreward.errors import QRewardError, RequestError, RequestTimeout
from qreward.streaming.handles import Stream, StreamReader

DONE = b"data: [DONE]\n\n"
_RAW = msgspec.json.Decoder(msgspec.Raw)


class Broken(Exception):
    """Raised by ``Events`` on the read after the event that reports an error."""


class Events(AsyncIterator[bytes]):
    """Iterates over the events of a stream that has begun. Each event is ``bytes``.

    Args:
        stream: the stream to read.
        seconds: maximum pause between two chunks, in seconds; None means no limit.
        wants_usage: whether the caller wants the chunk that reports the usage. The client always requests this chunk, because the scheduler
            learns from it. The chunk has no choices, so a program that did not request the chunk may fail on it.
    """

    def __init__(self, stream: Stream, seconds: float | None, *, wants_usage: bool) -> None:
        self._stream, self._seconds = stream, seconds
        self._reader = StreamReader(stream, _event_of(wants_usage))
        self._over = False
        self._error: QRewardError | None = None

    async def __anext__(self) -> bytes:
        if self._error is not None:
            raise Broken(str(self._error))
        if self._over:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout(self._seconds):
                return await anext(self._reader)
        except StopAsyncIteration:
            self._over = True
            return DONE
        except QRewardError as error:
            self._error = error
        except TimeoutError:
            self._error = paused_too_long(self._seconds, "during the answer")
        return event(_json({"error": described(self._error)}))

    async def aclose(self) -> None:
        """Stop reading. When this method returns, the request is cancelled and its connection is closed."""
        await self._stream.aclose()


def _event_of(wants_usage: bool) -> Callable[[ChatChunk], bytes | None]:
    """Return a function that converts the chunks of a stream to events."""
    first = True

    def convert(chunk: ChatChunk) -> bytes | None:
        nonlocal first
        if not wants_usage and tells_usage_only(chunk):
            return None
        body, first = in_pieces(chunk.body) if first else chunk.body, False
        return event(strict(body))

    return convert


def strict(body: bytes) -> bytes:
    """Return JSON unchanged if a strict parser accepts it, and rewritten otherwise.

    A strict parser rejects a byte order mark, bare control characters and invalid UTF-8.
    """
    try:
        _RAW.decode(body)
        _ = body.isascii() or body.decode()  # the decoder does not check the encoding
    except jsonio.REFUSED:
        return json.dumps(jsonio.read_leniently(body)).encode()
    return body


def event(data: bytes) -> bytes:
    """Return one server-sent event."""
    return b"".join(b"data: %b\n" % line for line in data.splitlines()) + b"\n"


def in_pieces(body: bytes) -> bytes:
    """Return the first chunk of a stream. If the server did not stream, ``body`` is a complete answer, which is converted to a chunk."""
    if b'"message"' not in body:
        return body
    document = jsonio.read_object(body)
    choices = document.get("choices")
    if not isinstance(choices, list) or not any(isinstance(choice, dict) and "message" in choice for choice in choices):
        return body
    return _json({**document, "object": "chat.completion.chunk", "choices": list(map(_choice_in_pieces, choices))})


def _choice_in_pieces(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    message = choice.get("message")
    delta = dict(message) if isinstance(message, dict) else {}
    if isinstance(calls := delta.get("tool_calls"), list):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return {**{name: value for name, value in choice.items() if name != "message"}, "delta": delta}


def paused_too_long(seconds: float | None, when: str) -> RequestTimeout:
    """Return the error for a request whose own timeout has passed."""
    return RequestTimeout(f"nothing arrived for {seconds:g} s {when}; that is the timeout of the request, set a longer one")


_TYPES = {400: "invalid_request", 401: "authentication", 403: "permission", 404: "not_found", 429: "rate_limit"}
_STATUSES: tuple[tuple[type[QRewardError] | tuple[type[QRewardError], ...], int, Container[int]], ...] = (
    (errors.NoEndpoint, 404, ()),
    (errors.BadRequest, 400, frozenset(range(400, 500)) - {401, 403, 407, 408, 409, 429}),
    (errors.ConfigError, 400, ()),
    (errors.AuthenticationFailed, 401, (401, 403)),
    (errors.RateLimited, 429, ()),
    ((RequestTimeout, errors.DeadlineExceeded), 504, ()),
    (errors.ServerError, 502, range(500, 600)),
    (errors.Rejected, 503, ()),
    ((errors.ConnectionFailed, errors.InvalidResponse, errors.StreamInterrupted), 502, ()),
    (QRewardError, 500, ()),
)
"""Error class, HTTP status of the reply, and statuses of the endpoint that replace this status. The first class that matches an error
counts."""


class OpenAIReply(NamedTuple):
    """An HTTP response. The body may be a stream."""

    status: int
    headers: dict[str, str]
    body: bytes | Events


def answered(body: bytes, endpoint: str | None) -> OpenAIReply:
    """Return the reply with an endpoint's answer. The JSON is changed only if a strict parser rejects it."""
    return OpenAIReply(200, _headers(**{"x-qreward-endpoint": endpoint}), strict(body))


def streamed(events: Events) -> OpenAIReply:
    """Return the reply for a stream that has begun."""
    return OpenAIReply(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}, events)


def models(names: Iterable[str]) -> OpenAIReply:
    """Return the reply with the list of models. The pattern of a route is listed unchanged."""
    return OpenAIReply(200, _headers(), _json({"object": "list", "data": list(map(_model, names))}))


def model(name: str) -> OpenAIReply:
    """Return the reply about one model."""
    return OpenAIReply(200, _headers(), _json(_model(name)))


def not_offered(method: str, path: str, routes: Iterable[str]) -> OpenAIReply:
    """Return a reply with status 404 that lists the supported requests."""
    offered = ", ".join(f"POST {route}" for route in routes)
    words = f"qreward does not offer {method} {path}; it offers {offered} and GET /models. Send other requests to their server directly."
    return OpenAIReply(404, _headers(**{"x-should-retry": "false"}), _json({"error": _error(words, 404, "not_offered")}))


def refused(error: QRewardError) -> OpenAIReply:
    """Return the reply for a call that failed for good."""
    source = {"x-request-id": error.request_id, "x-qreward-endpoint": error.endpoint} if isinstance(error, RequestError) else {}
    return OpenAIReply(status_of(error), _headers(**{"x-should-retry": "false", **source}), _json({"error": described(error)}))


def described(error: QRewardError) -> dict[str, Any]:
    """Return the ``error`` member of a body: message, type and code as in the OpenAI API, endpoint, and number of attempts."""
    sent = {"endpoint": error.endpoint, "attempts": len(error.attempts)} if isinstance(error, RequestError) else {}
    return _error(str(error), status_of(error), _code(error)) | sent


def status_of(error: QRewardError) -> int:
    """Return the HTTP status for an error. If SDKs raise the same error for the endpoint's own status, return the endpoint's own status."""
    own = error.status_code if isinstance(error, RequestError) else None
    status, allowed = next((status, allowed) for kind, status, allowed in _STATUSES if isinstance(error, kind))
    return own if own is not None and own in allowed else status


def _error(message: str, status: int, code: str) -> dict[str, Any]:
    return {"message": message, "type": f"{_TYPES.get(status, 'server')}_error", "param": None, "code": code}


def _code(error: QRewardError) -> str:
    """Return the API's error code if programs check for this code; otherwise, return the name of the error class in snake case."""
    if isinstance(error, errors.NoEndpoint):
        return "model_not_found"
    if isinstance(error, errors.BadRequest) and is_too_long(ErrorBody(str(error))):
        return "context_length_exceeded"
    if isinstance(error, errors.RateLimited) and error.attempts and error.attempts[-1].outcome == "quota":
        return "insufficient_quota"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "qreward"}


def _headers(**more: str | None) -> dict[str, str]:
    """Return the headers in ASCII, as HTTP requires. Names of endpoints may be in any script."""
    ascii_only = {name: value.encode("ascii", "backslashreplace").decode() for name, value in more.items() if value}
    return {"content-type": "application/json", **ascii_only}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
