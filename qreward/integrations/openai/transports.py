"""Transports for httpx and httpx2: they convert requests to plain values and replies to responses. Only this module knows these libraries.

One class serves both libraries, in async and in blocking code. Each request is answered with a response of the library that sent it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import httpx

from qreward.client import QRewardClient
from qreward.engine.portal import portal
from qreward.errors import ConfigError, QRewardError
from qreward.integrations.openai import responses
from qreward.integrations.openai.handler import RequestHandler
from qreward.integrations.openai.responses import Events, OpenAIReply
from qreward.settings.policies import Priority
from qreward.streaming.closing import Broken, leave
from qreward.sync_client import SyncQRewardClient

if TYPE_CHECKING:
    import httpx2

    class _Transports(  # type: ignore[misc]  # the two libraries' types differ by name only
        httpx.AsyncBaseTransport, httpx.BaseTransport, httpx2.AsyncBaseTransport, httpx2.BaseTransport
    ):
        pass

    class _AsyncBody(httpx.AsyncByteStream):
        pass

    class _SyncBody(httpx.SyncByteStream):
        pass
else:
    try:
        import httpx2
    except ImportError:  # openai 2 does not need it
        httpx2 = httpx

    def _joined(*names: str) -> type:
        packages = dict.fromkeys((httpx, httpx2))
        return type(names[0], tuple(getattr(package, name) for name in names for package in packages), {})

    _Transports = _joined("AsyncBaseTransport", "BaseTransport")
    _AsyncBody = _joined("AsyncByteStream")
    _SyncBody = _joined("SyncByteStream")


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
        client: a client of either kind, for a transport of either kind. Closing the SDK's client does not close it.
        priority: priority of all requests, 0 (most urgent) to 9.
        hedge: False for requests that must not be sent to two endpoints at once.
        tenant: tenant of all requests. Tenants that wait at the same priority get equal shares of the fleet.

    Raises:
        ConfigError: an argument is wrong.

    Example:
        >>> import httpx
        >>> from openai import AsyncOpenAI
        >>> from qreward import Endpoint, QRewardClient
        >>> client = QRewardClient([Endpoint("http://gpu-0:8000/v1", models=["judge-*"])])
        >>> sdk = AsyncOpenAI(base_url="http://qreward/v1", api_key="-", http_client=httpx.AsyncClient(transport=transport(client)))
    """
    inner = client._async if isinstance(client, SyncQRewardClient) else client
    if not isinstance(inner, QRewardClient):
        raise ConfigError(f"transport() takes a QRewardClient or a SyncQRewardClient, not a {type(client).__name__}")
    return Transport(RequestHandler(inner, priority, hedge, tenant))


class Transport(_Transports):
    """The transport that :func:`transport` returns. May be used in several event loops and threads at once."""

    def __init__(self, exchange: RequestHandler) -> None:
        self._exchange = exchange

    async def handle_async_request(self, request: Any) -> Any:
        """Return a response. Failures are responses, too. Only ``CancelledError`` is raised; it cancels the request to the endpoint."""
        body = await request.aread()
        reply = await self._exchange.answer(*_asked(request), body, _read_timeout(request))
        return _response(request, reply, _AsyncEvents)

    def handle_request(self, request: Any) -> Any:
        """Return a response, in blocking code. The work runs in the event loop thread that all blocking clients share."""
        body = request.read()
        try:
            reply = portal().call(self._exchange.answer, *_asked(request), body, _read_timeout(request))
        except QRewardError as error:  # raised by the portal when the process ends
            reply = responses.refused(error)
        return _response(request, reply, _SyncEvents)

    async def aclose(self) -> None:
        """Do nothing: the transport holds no connections."""

    def close(self) -> None:
        """Do nothing: the transport holds no connections."""

    def __repr__(self) -> str:
        return f"<Transport of {self._exchange.client!r}>"


class _AsyncEvents(_AsyncBody):
    """The body of a streamed answer."""

    def __init__(self, events: Events, package: Any) -> None:
        self._events, self._package = events, package

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for each in self._events:
                yield each
        except Broken as error:
            raise self._package.RemoteProtocolError(str(error)) from None

    async def aclose(self) -> None:
        await self._events.aclose()


class _SyncEvents(_SyncBody):
    """The body of a streamed answer, for blocking code."""

    def __init__(self, events: Events, package: Any) -> None:
        self._events, self._package = events, package
        self._pieces = portal().iterate(events)

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except Broken as error:
            raise self._package.RemoteProtocolError(str(error)) from None

    def close(self) -> None:
        leave(self._pieces, self._events.aclose)


def _asked(request: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the method, path and headers."""
    return request.method, request.url.path, list(request.headers.items())


def _read_timeout(request: Any) -> float | None:
    """Return the read timeout of a request, in seconds. Its connect and pool timeouts have no meaning here."""
    seconds: float | None = (request.extensions.get("timeout") or {}).get("read")
    return seconds


def _response(request: Any, reply: OpenAIReply, events: Any) -> Any:
    package: Any = httpx if isinstance(request, httpx.Request) else httpx2
    status, headers, body = reply
    if isinstance(body, bytes):
        return package.Response(status, headers=headers, content=body, request=request)
    return package.Response(status, headers=headers, stream=events(body, package), request=request)
