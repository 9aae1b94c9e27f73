"""Sends the requests of the openai SDK, and of libraries built on it or on httpx, to all endpoints of a client."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Container, Iterable, Iterator
from math import inf
from typing import Any

import httpx
import msgspec
import openai

from qreward import errors
from qreward.client import QRewardClient
from qreward.codecs import json as jsonio
from qreward.codecs.base import Codec, Malformed, WireRequest
from qreward.codecs.chat import VERBATIM_CHAT, PassthroughCodec
from qreward.codecs.chat_stream import ChatChunk, tells_usage_only
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.error_body import ErrorBody
from qreward.engine.portal import BlockingIterator, portal
from qreward.errors import BadRequest, ConfigError, QRewardError, RequestError, RequestTimeout
from qreward.options import preparer
from qreward.runtime import runtime_of
from qreward.scoring.merge_spec import EmbeddingsSpec
from qreward.settings.policies import Priority
from qreward.streaming import Stream, StreamReader, leave
from qreward.sync_client import SyncQRewardClient

try:
    import httpx2
except ImportError:  # openai 2 does not need it
    httpx2 = httpx  # type: ignore[misc]

__all__ = ["BASE_URL", "Transport", "async_http_client", "async_openai_client", "http_client", "openai_client", "transport"]


def _joined(*names: str) -> Any:
    """Return a class that inherits from the classes with these names in both libraries."""
    bases = tuple(getattr(package, name) for name in names for package in dict.fromkeys((httpx, httpx2)))
    return type("Joined", bases, {})


BASE_URL = "http://qreward/v1"
"""``base_url`` for an SDK. The host is never resolved or connected to. An SDK also requires a key, which is not sent either."""


def async_openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.AsyncOpenAI:
    """Return an ``AsyncOpenAI`` whose requests go through a client. Libraries built on the SDK accept this object.

    ``settings`` are ``priority``, ``hedge`` and ``tenant``, as in :func:`~qreward.integrations.openai.transport`.

    Example:
        >>> async def ask(client, messages):
        ...     async with async_openai_client(client) as sdk:
        ...         return await sdk.chat.completions.create(model="judge-7b", messages=messages)
    """
    return openai.AsyncOpenAI(base_url=BASE_URL, api_key="-", http_client=async_http_client(client, **settings))


def openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.OpenAI:
    """Return an ``OpenAI``, for blocking code. See :func:`async_openai_client`."""
    return openai.OpenAI(base_url=BASE_URL, api_key="-", http_client=http_client(client, **settings))


def async_http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """Return an ``http_client`` for the installed SDK: an ``httpx.AsyncClient``, or, since openai 3, an ``httpx2.AsyncClient``.

    The ``http_client`` sets no timeout. The ``timeout`` of ``client`` therefore applies, unless a request has a timeout.
    """
    return openai.DefaultAsyncHttpxClient(transport=transport(client, **settings), timeout=None)


def http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """Return an ``http_client`` for the installed SDK, for blocking code. See :func:`async_http_client`."""
    return openai.DefaultHttpxClient(transport=transport(client, **settings), timeout=None)


class Transport(_joined("AsyncBaseTransport", "BaseTransport")):  # type: ignore[misc]
    """A transport for the async and blocking clients of ``httpx`` and ``httpx2``. It opens no connections of its own.

    The model in the body selects a route of ``client``, whose scheduler sends the request. A transport may be used in several event loops
    and threads at once. Closing the client of the SDK or of httpx does not close ``client``.

    Args:
        client: an async or a blocking client. With either kind of client, the transport serves async and blocking programs.
        priority: priority of all requests, 0 (most urgent) to 9.
        hedge: False for requests that must not be sent to two endpoints at once.
        tenant: tenant of all requests. Tenants that wait at the same priority get equal shares of the endpoints.

    Raises:
        ConfigError: an argument is wrong.

    Example:
        >>> import httpx
        >>> from openai import AsyncOpenAI
        >>> from qreward import Endpoint, QRewardClient
        >>> client = QRewardClient([Endpoint("http://gpu-0:8000/v1", models=["judge-*"])])
        >>> sdk = AsyncOpenAI(base_url="http://qreward/v1", api_key="-", http_client=httpx.AsyncClient(transport=transport(client)))
    """

    def __init__(
        self,
        client: QRewardClient | SyncQRewardClient,
        *,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
    ) -> None:
        if not isinstance(client, QRewardClient | SyncQRewardClient):
            raise ConfigError(f"transport() takes a QRewardClient or a SyncQRewardClient, not a {type(client).__name__}")
        self._client = client
        self._given = {"priority": priority, "hedge": hedge, "tenant": tenant}
        self._runtime = runtime_of(client)
        self._runtime.request_options(self._given)  # raises at once if an option is wrong

    async def handle_async_request(self, request: Any) -> Any:
        """Return a response. A failure becomes a response too. If the caller is cancelled, the request to the endpoint is cancelled."""
        await request.aread()
        try:
            return _response(request, *await self._answer(request))
        except QRewardError as error:
            return _response(request, *refused(error))

    def handle_request(self, request: Any) -> Any:
        """Return a response, in blocking code. The work runs in the event loop thread that all blocking clients share."""
        request.read()
        try:
            return _response(request, *portal().call(self._answer, request))
        except QRewardError as error:  # also raised by the portal when the process ends
            return _response(request, *refused(error))

    def __repr__(self) -> str:
        return f"<Transport of {self._client!r}>"

    async def _answer(self, request: Any) -> Reply:
        """Return the reply to a request that was read. Raises ``QRewardError``.

        Only the request's timeout ``read`` applies. Without streaming, it covers the whole answer, including queueing and retries. With
        streaming, it covers the wait for the first token and each pause between two chunks.
        """
        method, path = request.method, request.url.path.rstrip("/")
        seconds = (request.extensions.get("timeout") or {}).get("read")
        route = route_of(path)
        if method == "GET" and (path.endswith("/models") or "/models/" in path):
            name = path.partition("/models")[2].removeprefix("/")
            if name:
                self._runtime.fleet.pool(name)  # raises NoEndpoint
            names = [name] if name else [route.pattern for route in self._client.list_routes()]
            listed: list[dict[str, Any]] = [{"id": each, "object": "model", "created": 0, "owned_by": "qreward"} for each in names]
            return _reply(200, listed[0] if name else {"object": "list", "data": listed})
        if method != "POST" or route is None:
            raise NotOffered(method, path)
        call = read(route, request.headers.items(), request.content)
        if call.params.get("stream"):
            if call.codec is not VERBATIM_CHAT:
                raise NotOffered("streamed", route)
            return await self._stream(call, seconds)
        options = self._runtime.request_options(self._given)
        if seconds is not None:
            options = options._replace(timeout=min(seconds, inf if options.timeout is None else options.timeout))
        if call.codec is EMBEDDINGS:
            spec = EmbeddingsSpec(call.model, {}, call.headers, call.params)
            (result,) = await self._runtime.merged(spec, [spec.call(call.inputs)], options)
        else:
            call.inputs = call.codec.validate(call.inputs)
            result = await self._runtime.one(call, options)
        answer: Any = result._answered()  # raises the result's error
        return _reply(200, strict(answer.body), **{"x-qreward-endpoint": result.endpoint})

    async def _stream(self, call: WireRequest, seconds: float | None) -> Reply:
        """Return the reply when the first token has arrived. If all attempts fail before that, the error is raised."""
        params = {name: value for name, value in call.params.items() if name != "stream"}
        stream = self._runtime.stream(preparer(call.codec, call.model, {}, call.headers, params)(call.inputs), self._given)
        try:
            async with asyncio.timeout(seconds):
                await stream
        except QRewardError:
            raise
        except TimeoutError:
            await stream.aclose()
            raise paused_too_long(seconds, "before the first token") from None
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return 200, headers, EventStream(stream, seconds, wants_usage="stream_options" in params)


transport = Transport
"""The name that pages and programs use for :class:`Transport`."""


class BrokenStream(_joined("RemoteProtocolError")):  # type: ignore[misc]
    """The error with which a stream ends that has failed."""


class EventStream(_joined("AsyncByteStream", "SyncByteStream")):  # type: ignore[misc]
    """The body of a streamed answer: server-sent events. ``seconds`` is the maximum pause between two chunks; None means no limit.

    If the stream fails, the last event reports the error, and then the connection breaks. For a program that does not check events, a
    failed stream would look like a short answer. The client always requests the chunk that reports the usage, because the scheduler learns
    from it. It has no choices, so a program that did not request it may fail on it, and gets it only if ``wants_usage``.
    """

    def __init__(self, stream: Stream, seconds: float | None, wants_usage: bool) -> None:
        self._stream, self._seconds, self._wants_usage = stream, seconds, wants_usage
        self._first = True
        self._pieces: BlockingIterator[bytes] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reader = StreamReader(self._stream, self._event)
        error: QRewardError | None = None
        while error is None:
            try:
                async with asyncio.timeout(self._seconds):
                    piece = await anext(reader)
            except StopAsyncIteration:
                yield b"data: [DONE]\n\n"
                return
            except QRewardError as failure:
                error = failure
            except TimeoutError:
                error = paused_too_long(self._seconds, "during the answer")
            else:
                yield piece
        yield event(json.dumps({"error": described(error)}).encode())
        raise BrokenStream(str(error))

    def __iter__(self) -> Iterator[bytes]:
        self._pieces = portal().iterate(self)
        yield from self._pieces

    async def aclose(self) -> None:
        """Stop reading. When this method returns, the request is cancelled and its connection is closed."""
        await self._stream.aclose()

    def close(self) -> None:
        leave(lambda: None if self._pieces is None else self._pieces.close(), self._stream.aclose)

    def _event(self, chunk: ChatChunk) -> bytes | None:
        if not self._wants_usage and tells_usage_only(chunk):
            return None
        body, self._first = in_pieces(chunk.body) if self._first else chunk.body, False
        return event(strict(body))


Reply = tuple[int, dict[str, str], bytes | EventStream]
"""Status, headers and body of an HTTP response, before it is an object of httpx or httpx2."""


def _response(request: Any, status: int, headers: dict[str, str], body: bytes | EventStream) -> Any:
    package: Any = httpx if isinstance(request, httpx.Request) else httpx2
    content = {"content": body} if isinstance(body, bytes) else {"stream": body}
    return package.Response(status, headers=headers, request=request, **content)


# requests


ROUTES: dict[str, tuple[str, Codec]] = {
    "/chat/completions": ("messages", VERBATIM_CHAT),
    "/completions": ("prompt", PassthroughCodec("/completions", native=False, verbatim=True)),
    "/embeddings": ("input", EMBEDDINGS),
    "/moderations": ("input", PassthroughCodec("/moderations", native=False)),
    "/rerank": ("documents", PassthroughCodec("/rerank", native=False)),
}
"""The end of a path -> the member of the body that holds the inputs, and the codec. The first entry that matches a path counts."""

_OURS = frozenset({
    "host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "accept-encoding", "user-agent",
    "authorization", "proxy-authorization", "api-key", "x-api-key", "cookie", "openai-organization", "openai-project",
    "traceparent", "tracestate", "baggage",
})  # fmt: skip
"""Headers that are not forwarded. They belong to the connection, to the account (each endpoint has its own), or to the client's spans.
Those of the SDK, ``x-stainless-...``, are not forwarded either."""


def route_of(path: str) -> str | None:
    """Return the key of ``ROUTES`` with which a path ends; None if the path ends with no key."""
    return next((route for route in ROUTES if path.endswith(route)), None)


def read(route: str, headers: Iterable[tuple[str, str]], body: bytes) -> WireRequest:
    """Parse a request without validating its inputs. Raises ``BadRequest`` if the body is not a JSON object or names no model."""
    try:
        params = jsonio.read(body)
    except Malformed:
        raise BadRequest("the body is not JSON; send a JSON object as the OpenAI API takes it, without compression") from None
    if not isinstance(params, dict):
        raise BadRequest(f"the body is a JSON {type(params).__name__}; send an object with 'model'")
    model = params.pop("model", None)
    if not isinstance(model, str) or not model:
        raise BadRequest("the request has no model; set model='...' to a name that a route matches")
    member, codec = ROUTES[route]
    named = ((name.lower(), value) for name, value in headers)
    forwarded = {name: value for name, value in named if name not in _OURS and not name.startswith("x-stainless-")}
    inputs = params.get(member) if isinstance(codec, PassthroughCodec) else params.pop(member, None)
    return WireRequest(codec, model, inputs, params, forwarded or None)


# replies

_RAW = msgspec.json.Decoder(msgspec.Raw)


def strict(body: bytes) -> bytes:
    """Return JSON unchanged if a strict parser accepts it, else rewritten without what such a parser rejects, such as wrong UTF-8."""
    try:
        _RAW.decode(body)
        _ = body.isascii() or body.decode()  # the decoder does not check the encoding
    except jsonio.REFUSED:
        return json.dumps(jsonio.read_leniently(body)).encode()
    return body


def event(data: bytes) -> bytes:
    return b"".join(b"data: %b\n" % line for line in data.splitlines()) + b"\n"


def in_pieces(body: bytes) -> bytes:
    """Return the first chunk of a stream. If the server did not stream, ``body`` is a complete answer, which is converted to a chunk.

    Some servers send a message, or null in its place, beside the delta of a chunk.
    """
    if b'"message"' not in body:
        return body
    document = jsonio.read_object(body)
    choices = document.get("choices")
    choices = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    whole = [choice for choice in choices if "message" in choice and not isinstance(choice.get("delta"), dict)]
    if not whole:
        return body
    for choice in whole:
        message = choice.pop("message")
        choice["delta"] = delta = message if isinstance(message, dict) else {}
        if isinstance(calls := delta.get("tool_calls"), list):
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return json.dumps({**document, "object": "chat.completion.chunk"}).encode()


def paused_too_long(seconds: float | None, when: str) -> RequestTimeout:
    return RequestTimeout(f"nothing arrived for {seconds:g} s {when}; that is the timeout of the request, set a longer one")


_TYPES = {400: "invalid_request", 401: "authentication", 403: "permission", 404: "not_found", 429: "rate_limit"}


class NotOffered(QRewardError):
    """The transport does not support a request."""

    def __init__(self, method: str, path: str) -> None:
        offered = ", ".join(f"POST {route}" for route in ROUTES)
        super().__init__(
            f"qreward does not offer {method} {path}; it offers {offered} and GET /models. Send other requests to their server directly."
        )


_STATUSES: tuple[tuple[type[QRewardError] | tuple[type[QRewardError], ...], int, Container[int]], ...] = (
    ((errors.NoEndpoint, NotOffered), 404, ()),
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
"""Error class, HTTP status of the reply, and statuses of the endpoint that replace this status. The first class that matches counts."""


def refused(error: QRewardError) -> Reply:
    source = {"x-request-id": error.request_id, "x-qreward-endpoint": error.endpoint} if isinstance(error, RequestError) else {}
    return _reply(status_of(error), {"error": described(error)}, **{"x-should-retry": "false", **source})


def described(error: QRewardError) -> dict[str, Any]:
    """Return the ``error`` member of a body: message, type and code as in the OpenAI API, endpoint, and number of attempts.

    The code is the API's if programs check for it, and otherwise the name of the error class in snake case.
    """
    code = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    if isinstance(error, errors.NoEndpoint):
        code = "model_not_found"
    elif isinstance(error, errors.BadRequest) and ErrorBody(str(error)).is_too_long():
        code = "context_length_exceeded"
    elif isinstance(error, errors.RateLimited) and error.attempts and error.attempts[-1].outcome == "quota":
        code = "insufficient_quota"
    sent = {"endpoint": error.endpoint, "attempts": len(error.attempts)} if isinstance(error, RequestError) else {}
    return {"message": str(error), "type": f"{_TYPES.get(status_of(error), 'server')}_error", "param": None, "code": code, **sent}


def status_of(error: QRewardError) -> int:
    """Return the HTTP status for an error. If SDKs raise the same error for the endpoint's own status, return the endpoint's own status."""
    own = error.status_code if isinstance(error, RequestError) else None
    status, allowed = next((status, allowed) for kind, status, allowed in _STATUSES if isinstance(error, kind))
    return own if own is not None and own in allowed else status


def _reply(status: int, document: dict[str, Any] | bytes, **headers: str | None) -> Reply:
    """Return a reply. Headers are ASCII, as HTTP requires; names of endpoints may be in any script."""
    ascii_only = {name: value.encode("ascii", "backslashreplace").decode() for name, value in headers.items() if value}
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return status, {"content-type": "application/json", **ascii_only}, body
