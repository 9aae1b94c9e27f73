"""What an SDK is answered: a status, headers, and a body. Our errors become those of the OpenAI API. Knows no HTTP library.

Every error says ``x-should-retry: false``: it is the end of a call that has been queued, tried, tried elsewhere and hedged already, so an
SDK that tries again by itself would only multiply that.

An answer that comes in pieces, as server-sent events. Knows chunks and the form of events; knows no HTTP library.

A stream that breaks off ends in an event with an ``error``, which SDKs raise, and then in a broken connection, for those that do not look
at errors: it never looks like a short answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.chat_stream import ChatChunk, read_object, tells_usage_only
from qreward.errors import (
    AuthenticationFailed,
    BadRequest,
    ConfigError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidResponse,
    NoEndpoint,
    QRewardError,
    RateLimited,
    Rejected,
    RequestError,
    RequestTimeout,
    ServerError,
    StreamInterrupted,
)
from qreward.integrations.openai.request import ROUTES
from qreward.streaming.closing import Broken
from qreward.streaming.handles import Reader, Stream
from qreward.transport import error_mapping as meanings
from qreward.transport.error_mapping import ErrorBody

DONE = b"data: [DONE]\n\n"
_RAW = msgspec.json.Decoder(msgspec.Raw)


class Events:
    """The events of a stream that has begun, one after the other; an asynchronous iterator of bytes.

    Args:
        stream: what is read.
        seconds: the longest silence between two pieces; None is any.
        told_usage: the caller wants the chunk that tells the usage. It is asked for in any case, for the scheduler learns from it, but a
            program that did not ask does not expect a chunk without choices.
        as_event: how an error is told.
    """

    def __init__(self, stream: Stream, seconds: float | None, told_usage: bool, as_event: Callable[[QRewardError], bytes]) -> None:
        self._stream, self._seconds, self._as_event = stream, seconds, as_event
        self._reader = Reader(stream, _Shown(told_usage))
        self._over = False
        self._error: QRewardError | None = None

    def __aiter__(self) -> Events:
        return self

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
            return self._told(error)
        except TimeoutError:
            return self._told(silence(self._seconds, "amid the answer"))

    async def aclose(self) -> None:
        """Leave; the request is stopped upstream, and its connection closed, when this returns."""
        await self._stream.aclose()

    def _told(self, error: QRewardError) -> bytes:
        self._error = error
        return self._as_event(error)


class _Shown:
    """From chunks to events."""

    __slots__ = ("_first", "_told_usage")

    def __init__(self, told_usage: bool) -> None:
        self._first, self._told_usage = True, told_usage

    def __call__(self, chunk: ChatChunk) -> bytes | None:
        if not self._told_usage and tells_usage_only(chunk):
            return None
        first, self._first = self._first, False
        return event(strict(in_pieces(chunk.body) if first else chunk.body))


def strict(body: bytes) -> bytes:
    """The same JSON, written anew only where a strict reader would refuse it: a byte order mark, bare control characters, broken UTF-8."""
    try:
        _RAW.decode(body)
        _ = body.isascii() or body.decode()  # which the decoder does not look at
    except jsonio.REFUSED:
        return json.dumps(jsonio.read_leniently(body)).encode()
    return body


def event(data: bytes) -> bytes:
    """One event.

    Example:
        >>> event(b'{"a": 1}')
        b'data: {"a": 1}\\n\\n'
    """
    return b"".join(b"data: %b\n" % line for line in data.splitlines()) + b"\n"


def in_pieces(body: bytes) -> bytes:
    """A first chunk as it came; the whole answer of a server that does not stream as the one chunk it stands for."""
    if b'"message"' not in body:
        return body
    document = read_object(body)
    choices = document.get("choices")
    if not isinstance(choices, list) or not any(isinstance(choice, dict) and "message" in choice for choice in choices):
        return body
    return json.dumps(
        {**document, "object": "chat.completion.chunk", "choices": [_choice_in_pieces(choice) for choice in choices]}
    ).encode()


def _choice_in_pieces(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    message = choice.get("message")
    delta = dict(message) if isinstance(message, dict) else {}
    if isinstance(calls := delta.get("tool_calls"), list):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return {**{name: value for name, value in choice.items() if name != "message"}, "delta": delta}


def silence(seconds: float | None, when: str) -> RequestTimeout:
    """The time that the request itself gives was over."""
    return RequestTimeout(f"nothing came for {seconds:g} s {when}, which is the timeout that the request was given; give it more")


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_STATUSES: tuple[tuple[type[QRewardError], int, frozenset[int]], ...] = (
    (NoEndpoint, 404, frozenset()),
    (BadRequest, 400, frozenset(range(400, 500)) - {401, 403, 407, 408, 409, 429}),
    (ConfigError, 400, frozenset()),
    (AuthenticationFailed, 401, frozenset({401, 403})),
    (RateLimited, 429, frozenset()),
    (RequestTimeout, 504, frozenset()),
    (DeadlineExceeded, 504, frozenset()),
    (ServerError, 502, frozenset(range(500, 600))),
    (Rejected, 503, frozenset()),
    (ConnectionFailed, 502, frozenset()),
    (InvalidResponse, 502, frozenset()),
    (StreamInterrupted, 502, frozenset()),
    (QRewardError, 500, frozenset()),
)
"""Error, the first that fits -> its status, and which of the server's own it may have instead."""


class Reply(NamedTuple):
    """An HTTP answer, whose body may be still to come."""

    status: int
    headers: dict[str, str]
    body: bytes | Events


def answered(body: bytes, endpoint: str | None) -> Reply:
    """An answer, as its endpoint gave it."""
    return Reply(200, _headers(**{"x-qreward-endpoint": endpoint}), strict(body))


def streamed(events: Events) -> Reply:
    """An answer that has begun."""
    return Reply(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}, events)


def models(names: Iterable[str]) -> Reply:
    """The list of models; a pattern stands in it as it is written."""
    return Reply(200, _headers(), _json({"object": "list", "data": [_model(name) for name in names]}))


def model(name: str) -> Reply:
    """One model."""
    return Reply(200, _headers(), _json(_model(name)))


def not_offered(method: str, path: str) -> Reply:
    """404, saying what there is."""
    offered = ", ".join(f"POST {route}" for route in ROUTES)
    words = f"qreward does not offer {method} {path}; it offers {offered} and GET /models. Send what else there is to its server directly."
    return Reply(404, _headers(**{"x-should-retry": "false"}), _json({"error": _error(words, 404, "not_offered")}))


def refused(error: QRewardError) -> Reply:
    """A call that failed for good."""
    status, told = status_of(error), error if isinstance(error, RequestError) else None
    more = {"x-request-id": told.request_id, "x-qreward-endpoint": told.endpoint} if told else {}
    return Reply(status, _headers(**{"x-should-retry": "false", **more}), _json({"error": described(error)}))


def described(error: QRewardError) -> dict[str, Any]:
    """The ``error`` of a body: what went wrong in the API's words, where, and after how many attempts."""
    told = {"endpoint": error.endpoint, "attempts": len(error.attempts)} if isinstance(error, RequestError) else {}
    return _error(str(error), status_of(error), _code(error)) | told


def status_of(error: QRewardError) -> int:
    """The HTTP status that stands for an error: the server's own where SDKs take it for the same.

    Example:
        >>> status_of(NoEndpoint("no route")), status_of(RateLimited("full", status_code=503))
        (404, 429)
    """
    own = error.status_code if isinstance(error, RequestError) else None
    status, allowed = next((status, allowed) for kind, status, allowed in _STATUSES if isinstance(error, kind))
    return own if own in allowed else status


def _error(message: str, status: int, code: str) -> dict[str, Any]:
    return {"message": message, "type": _TYPES.get(status, "server_error"), "param": None, "code": code}


def _code(error: QRewardError) -> str:
    """The API's code where programs look for it, else the name of our error."""
    if isinstance(error, NoEndpoint):
        return "model_not_found"
    if isinstance(error, BadRequest) and meanings.is_too_long(ErrorBody(str(error))):
        return "context_length_exceeded"
    if isinstance(error, RateLimited) and error.attempts and error.attempts[-1].outcome == "quota":
        return "insufficient_quota"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "qreward"}


def _headers(**more: str | None) -> dict[str, str]:
    """As HTTP can carry them: names of endpoints may be in any script."""
    told = {name: value.encode("ascii", "backslashreplace").decode() for name, value in more.items() if value}
    return {"content-type": "application/json", **told}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
