"""Transports for httpx and httpx2, and clients of the openai SDK (major version 2 or 3).

In ``qreward.integrations.openai``, only this module imports httpx, httpx2 and openai. One class serves both HTTP libraries, in async and
in blocking code. Each request is answered with a response of the library that sent the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai

from qreward.client import QRewardClient
from qreward.engine.portal import portal
from qreward.errors import ConfigError, QRewardError
from qreward.integrations.openai.handler import RequestHandler
from qreward.integrations.openai.responses import Broken, Events, OpenAIReply, refused
from qreward.settings.policies import Priority
from qreward.streaming.sync import leave
from qreward.sync_client import SyncQRewardClient

try:
    import httpx2
except ImportError:  # openai 2 does not need it
    httpx2 = httpx  # type: ignore[misc]


def _joined(*names: str) -> Any:
    """Return a class that inherits from the classes with these names in both libraries."""
    bases = tuple(getattr(package, name) for name in names for package in dict.fromkeys((httpx, httpx2)))
    return type("Joined", bases, {})


BASE_URL = "http://qreward/v1"
"""``base_url`` for an SDK. The host name is never resolved or connected to."""
_KEY = "-"
"""API key for an SDK, because an SDK requires an API key. The requests are sent with the keys of the endpoints instead."""


def transport(
    client: QRewardClient | SyncQRewardClient,
    *,
    priority: Priority | int | str = Priority.NORMAL,
    hedge: bool = True,
    tenant: str | None = None,
) -> Transport:
    """Return a transport for the async and blocking clients of ``httpx`` and ``httpx2``. It opens no connections of its own.

    The model in the body selects a route of ``client``, whose scheduler sends the request.

    Args:
        client: an async or a blocking client. With either kind of client, the transport serves async and blocking
            programs. Closing the client of the
            SDK or of httpx does not close this client.
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
    if not isinstance(client, QRewardClient | SyncQRewardClient):
        raise ConfigError(f"transport() takes a QRewardClient or a SyncQRewardClient, not a {type(client).__name__}")
    return Transport(RequestHandler(client, priority, hedge, tenant))


def async_openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.AsyncOpenAI:
    """Return an ``AsyncOpenAI`` whose requests go through a client. Libraries built on the SDK accept this object.

    Args:
        client: the client that sends the requests. Closing the SDK's client does not close this client.
        settings: ``priority``, ``hedge`` and ``tenant``, as in :func:`~qreward.integrations.openai.transport`.

    Example:
        >>> async def ask(client, messages):
        ...     async with async_openai_client(client) as sdk:
        ...         return await sdk.chat.completions.create(model="judge-7b", messages=messages)
    """
    return openai.AsyncOpenAI(base_url=BASE_URL, api_key=_KEY, http_client=async_http_client(client, **settings))


def openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.OpenAI:
    """Return an ``OpenAI``, for blocking code. See :func:`async_openai_client`."""
    return openai.OpenAI(base_url=BASE_URL, api_key=_KEY, http_client=http_client(client, **settings))


def async_http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """Return an ``http_client`` for the installed SDK: an ``httpx.AsyncClient``. Since openai 3, it is an
    ``httpx2.AsyncClient``.

    The ``http_client`` sets no timeout. The ``timeout`` of ``client`` therefore applies, unless a request has a timeout.
    """
    return openai.DefaultAsyncHttpxClient(transport=transport(client, **settings), timeout=None)


def http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """Return an ``http_client`` for the installed SDK, for blocking code. See :func:`async_http_client`."""
    return openai.DefaultHttpxClient(transport=transport(client, **settings), timeout=None)


class Transport(_joined("AsyncBaseTransport", "BaseTransport")):  # type: ignore[misc]
    """The transport that :func:`transport` returns. It may be used in several event loops and threads at once."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler

    async def handle_async_request(self, request: Any) -> Any:
        """Return a response. A failure becomes a response too. If the caller is cancelled, the request to the endpoint is cancelled."""
        return _response(request, await self._handler.answer(*_arguments(request, await request.aread())), blocking=False)

    def handle_request(self, request: Any) -> Any:
        """Return a response, in blocking code. The work runs in the event loop thread that all blocking clients share."""
        arguments = _arguments(request, request.read())
        try:
            reply = portal().call(self._handler.answer, *arguments)
        except QRewardError as error:  # raised by the portal when the process ends
            reply = refused(error)
        return _response(request, reply, blocking=True)

    async def aclose(self) -> None:
        """Do nothing, because the transport holds no connections."""

    def close(self) -> None:
        """Do nothing, because the transport holds no connections."""

    def __repr__(self) -> str:
        return f"<Transport of {self._handler.client!r}>"


class _Body(_joined("AsyncByteStream", "SyncByteStream")):  # type: ignore[misc]
    """The body of a streamed answer."""

    def __init__(self, events: Events, package: Any, *, blocking: bool) -> None:
        self._events, self._package = events, package
        self._pieces = portal().iterate(events) if blocking else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._events:
                yield piece
        except Broken as error:
            raise self._package.RemoteProtocolError(str(error)) from None

    def __iter__(self) -> Iterator[bytes]:
        assert self._pieces is not None
        try:
            yield from self._pieces
        except Broken as error:
            raise self._package.RemoteProtocolError(str(error)) from None

    async def aclose(self) -> None:
        await self._events.aclose()

    def close(self) -> None:
        assert self._pieces is not None
        leave(self._pieces, self._events.aclose)


def _arguments(request: Any, body: bytes) -> tuple[str, str, list[tuple[str, str]], bytes, float | None]:
    """Return the arguments of ``RequestHandler.answer``. Only the request's timeout ``read`` applies, because no connection is opened."""
    seconds = (request.extensions.get("timeout") or {}).get("read")
    return request.method, request.url.path, list(request.headers.items()), body, seconds


def _response(request: Any, reply: OpenAIReply, *, blocking: bool) -> Any:
    package: Any = httpx if isinstance(request, httpx.Request) else httpx2
    status, headers, body = reply
    content = {"content": body} if isinstance(body, bytes) else {"stream": _Body(body, package, blocking=blocking)}
    return package.Response(status, headers=headers, request=request, **content)
