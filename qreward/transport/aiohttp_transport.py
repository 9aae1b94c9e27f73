"""The default transport: aiohttp, with settings that keep it correct and fast on the hot path."""

from __future__ import annotations

import asyncio
import io
import select
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError
from aiohttp.payload import BytesPayload
from multidict import CIMultiDict, istr
from yarl import URL

from qreward.codecs.base import Reply, TransportError
from qreward.settings.policies import Endpoint
from qreward.transport import base, connection_settings
from qreward.transport.base import Body, ByteStream, HttpTransport

CONNECTS_AT_ONCE = 64
"""Maximum number of connections that are opened to an endpoint at the same time. 2048 concurrent TLS handshakes block the event loop for
seconds, until they time out. With 64 handshakes at a time, the total time is the same, and the loop is blocked for less than 100 ms
(measured)."""

_open_sessions: dict[aiohttp.ClientSession, asyncio.AbstractEventLoop] = {}
"""The sessions that are not closed. A client that is dropped without ``aclose`` is closed by its event loop. This dictionary keeps its
sessions until then. Without it, the garbage collector might free them together with the client, before the loop has closed them."""
_POLL = getattr(select, "poll", None)  # Windows has none
_AT_ONCE = 1 << 15  # bytes of the largest body that is written without an asyncio task; half of the buffer of an asyncio transport
_LARGE = 1 << 20  # bytes of the largest body that is passed as one bytes object; aiohttp warns about a larger object
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError, aiohttp.InvalidURL, UnicodeError)
_EXPECTED = (aiohttp.ClientError, OSError, HttpProcessingError, UnicodeError)


class AiohttpTransport(HttpTransport):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._headers = CIMultiDict({istr(name): value for name, value in connection_settings.request_headers(endpoint).items()})
        self._proxy = connection_settings.proxy_of(endpoint)
        self._tls = connection_settings.tls_of(endpoint)
        self.cap = endpoint.max_response_bytes
        self._urls: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None
        self._arriving: set[aiohttp.ClientResponse] = set()
        self._closed = False

    async def begin(self, method: str, path: str, body: Body, headers: Mapping[str, str] | None) -> AiohttpStream:
        return AiohttpStream(await self._request(method, path, body, headers), self)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """As in the base class, but no stream is made for a response that has arrived at once, which saves 5 % of the CPU time."""
        response = await self._request("POST", path, body, headers)
        content = response.content
        if content.is_eof() and content.exception() is None and content.total_bytes <= self.cap:
            self._arriving.discard(response)
            return Reply(response.status, response.headers, content.read_nowait())
        stream = AiohttpStream(response, self)
        if (response.content_length or 0) > self.cap:
            await stream.aclose()
            raise base.too_long(self.cap)
        return await stream.read_whole(self.cap)

    async def _request(self, method: str, path: str, body: Body, headers: Mapping[str, str] | None) -> aiohttp.ClientResponse:
        session = self._session or self._open()
        if (url := self._urls.get(path)) is None:
            whole = path if "://" in path else self._endpoint.base_url + path
            url = self._urls[path] = URL(whole, encoded=whole.isascii() and whole.isprintable() and " " not in whole)
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) >= _LARGE else body
        try:
            response = await session.request(method, url, data=data, headers=headers, allow_redirects=False)
        except _EXPECTED as error:
            failure = self.failed(error)
        else:
            self._arriving.add(response)
            return response
        raise failure  # outside the except block, so that aiohttp's error, which holds the request headers, is not its context

    def failed(self, error: BaseException) -> TransportError:
        """Return the ``TransportError`` for an exception. After a break, no idle connection is used again, because it may be dead too."""
        failure = translate(error, self._proxy)
        if failure.sent and self._session is not None and isinstance(self._session.connector, GatedConnector):
            self._session.connector.close_idle()
        return failure

    def ended(self, response: aiohttp.ClientResponse) -> None:
        if not response.content.is_eof():
            response.close()
        self._arriving.discard(response)

    async def aclose(self) -> None:
        self._closed = True
        for response in self._arriving:
            with suppress(RuntimeError):  # the event loop is closed
                response.close()  # if only the session were closed, a task that reads the response would wait forever
        session, self._session = self._session, None
        if session is not None:
            _open_sessions.pop(session, None)
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise base.closed()
        endpoint = self._endpoint
        self._session = aiohttp.ClientSession(
            connector=GatedConnector(connect=endpoint.timeouts.connect, keepalive=endpoint.keepalive, tls=self._tls),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=endpoint.timeouts.connect, sock_read=endpoint.timeouts.read),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self._proxy,
            read_bufsize=65536,
            max_field_size=32768,
            request_class=ClientRequest if sys.version_info >= (3, 12) else DirectRequest,
        )
        for session in [session for session, loop in list(_open_sessions.items()) if loop.is_closed()]:
            _open_sessions.pop(session, None)  # nothing can close it any more
        _open_sessions[self._session] = asyncio.get_running_loop()
        return self._session


class AiohttpStream(ByteStream):
    __slots__ = ("_content", "_owner", "_response")

    def __init__(self, response: aiohttp.ClientResponse, owner: AiohttpTransport) -> None:
        self._response = response
        self._owner = owner
        self._content = response.content
        self.status = response.status
        self.headers = response.headers

    async def read(self) -> bytes:
        data = b""
        try:
            data = await self._content.readany()
        except _EXPECTED as error:
            failure = self._owner.failed(error)
        else:
            return data
        finally:
            if not data:
                self._owner.ended(self._response)
        raise failure

    async def aclose(self) -> None:
        self._owner.ended(self._response)


class _Written(Exception):
    """Stops ``ClientRequest.send`` before it creates an asyncio task for a body that is written already."""


class DirectRequest(ClientRequest):
    """Writes a small body at once, as aiohttp does itself from Python 3.12. On 3.11 aiohttp creates an asyncio task for each body, which
    takes 6 % of the CPU time of a call (531 us with it, 500 us without, client and server on one core)."""

    response: Any

    def write_bytes(self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None) -> Coroutine[Any, Any, None]:
        writing = super().write_bytes(writer, conn, content_length)
        body, transport = self._body, conn.transport
        is_small = isinstance(body, BytesPayload) and (body.size or 0) <= _AT_ONCE and self._continue is None
        if not is_small or transport is None or transport.get_write_buffer_size():
            return writing
        try:
            writing.send(None)
        except StopIteration:
            raise _Written(writer) from None
        raise AssertionError("a body that fits into the buffer of the transport is written without waiting")

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        try:
            return await super().send(conn)
        except _Written as written:
            (writer,) = written.args
        made: aiohttp.ClientResponse = self.response_class(
            self.method,
            self.original_url,
            writer=None,
            continue100=None,
            timer=self._timer,
            request_info=self.request_info,
            traces=self._traces,
            loop=self.loop,
            session=self._session,
            stream_writer=writer,
        )
        self.response = made
        return made


class _Protocol(ResponseHandler):
    """Fails the body that is being read when what arrives is not HTTP any more, such as a second status line among the chunks of a server
    that fails amid its answer. aiohttp's own parser fails only the connection, so that the reader of the body would wait forever."""

    def set_exception(self, exc: BaseException, *args: Any) -> None:
        super().set_exception(exc, *args)
        if isinstance(exc, HttpProcessingError) and self._payload is not None and not self._payload.is_eof():
            self._loop.call_soon(self._payload.set_exception, exc)  # after the reader has taken what arrived before, such as [DONE]


class GatedConnector(aiohttp.TCPConnector):
    def __init__(self, *, connect: float, keepalive: float, tls: object) -> None:
        super().__init__(limit=0, limit_per_host=0, keepalive_timeout=keepalive, ttl_dns_cache=60, ssl=tls)  # type: ignore[arg-type]
        self._factory = partial(_Protocol, loop=self._loop)  # type: ignore[assignment]
        self._connect_limit = connect
        self._gate = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def _create_connection(
        self, req: ClientRequest, traces: list[aiohttp.tracing.Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        async with self._gate:  # not within the connect timeout
            # sock_connect alone does not cover the DNS lookup and the proxy's answer to CONNECT
            async with asyncio.timeout(self._connect_limit):
                return await super()._create_connection(req, traces, timeout)

    async def _get(self, key: ConnectionKey, traces: list[aiohttp.tracing.Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if protocol is not None and protocol.transport is not None and not protocol.should_close:
                if _POLL is None:
                    break
                poll = getattr(protocol, "unread", None)
                if poll is None:  # kept with the connection: it takes as long to make as to ask
                    poll = protocol.unread = _POLL()  # type: ignore[attr-defined]
                    poll.register(protocol.transport.get_extra_info("socket"), select.POLLIN)
                if not poll.poll(0):
                    break
            connection.close()  # bytes that it has received, also those that the event loop has not read, would count as the next response
        return connection

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        protocol._parser = None  # without a parser, aiohttp keeps all bytes that arrive, and ``should_close`` becomes True

    def close_idle(self) -> None:
        for key in list(self._conns):
            for protocol, _ in self._conns.pop(key):
                protocol.close()


def translate(error: BaseException, proxy: str | None = None) -> TransportError:
    """Return the ``TransportError`` for an exception of aiohttp. ``proxy`` is the URL of the proxy in use, if there is one."""
    if base.is_local(error):
        return base.out_of_resources(_reason(error))
    if isinstance(error, _NOT_SENT):
        return base.no_connection(*_obstacle(error, proxy), in_time=not isinstance(error, aiohttp.ConnectionTimeoutError))
    if isinstance(error, aiohttp.SocketTimeoutError):
        return base.silence()
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):  # the status 400 of this error is aiohttp's, not the server's
        return base.not_http(type(error).__name__, error.message)
    if isinstance(error, aiohttp.ClientPayloadError) and isinstance(error.__cause__, ContentEncodingError):
        return base.not_http(type(error.__cause__).__name__, error.__cause__.message)
    return base.broken(_reason(error))


def _obstacle(error: BaseException, proxy: str | None) -> tuple[str, str]:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "", base.CHECK_SERVER if proxy is None else f"{base.CHECK_SERVER}, and {base.CHECK_PROXY}"
    if proxy is not None and isinstance(error, aiohttp.ClientConnectorError) and error.host == URL(proxy).host:
        return f"the proxy: {_reason(error)}", base.CHECK_PROXY
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status}", base.CHECK_PROXY
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or "refused"
        return f"TLS certificate: {reason}", "set verify to the server's CA bundle"
    if isinstance(error, aiohttp.ClientConnectorSSLError) and getattr(error.os_error, "reason", "") in base.NOT_TLS:
        return "the server does not speak TLS at this port", "write base_url with http://, or with the port for https"
    return _reason(error), base.CHECK_SERVER


def _reason(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
