"""The transport over ``httpx``: for a user's own client or transport of ``httpx`` or ``httpx2``, for applications in this process, and for
``transport="httpx"``. ``httpx`` is imported only for the last two. What its clients cannot do is in ``docs/design/engine.md``."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from qreward.codecs.base import TransportError
from qreward.errors import ConfigError
from qreward.settings.local import http_package_of
from qreward.settings.policies import Endpoint
from qreward.transport import base, connection_settings
from qreward.transport.base import Body, ByteStream, HttpTransport


class HttpxTransport(HttpTransport):
    """Sends requests through ``endpoint.http_client``, an application in this process, or the client's ``transport``."""

    def __init__(self, endpoint: Endpoint, transport: Any = "httpx") -> None:
        self._package, self._client, self._owned = _client_of(endpoint, transport)
        self._headers = connection_settings.request_headers(endpoint)
        self._base_url = endpoint.base_url
        self.cap = endpoint.max_response_bytes
        self._timeout = self._package.Timeout(None, connect=endpoint.timeouts.connect, read=endpoint.timeouts.read)
        self._closed = False

    async def begin(self, method: str, path: str, body: Body, headers: Mapping[str, str] | None) -> HttpxStream:
        if self._closed:
            raise base.closed()
        package = self._package
        merged = package.Headers(self._headers)
        merged.update(headers or {})
        try:
            url = path if "://" in path else self._base_url + path
            request = self._client.build_request(method, url, content=body, headers=merged, timeout=self._timeout)
            return HttpxStream(package, await self._client.send(request, stream=True, follow_redirects=False))
        except package.HTTPStatusError as error:  # raised by a hook of the user that calls raise_for_status
            return HttpxStream(package, error.response, _body_if_read(package, error.response))
        except _expected(package) as error:
            failure = translate(package, error)
        raise failure  # outside the except block, so that httpx's error, which holds the request headers, is not its context

    async def aclose(self) -> None:
        """Refuse further requests. The user's client stays open."""
        self._closed = True
        if self._owned:
            with contextlib.suppress(RuntimeError):  # the event loop of its connections is closed; the garbage collector closes them
                await self._client.aclose()


class HttpxStream(ByteStream):
    def __init__(self, package: Any, response: Any, pieces: AsyncGenerator[bytes, None] | None = None) -> None:
        self._package = package
        self._response = response
        self._pieces: AsyncGenerator[bytes, None] = response.aiter_bytes() if pieces is None else pieces
        self.status = response.status_code
        self.headers = response.headers

    async def read(self) -> bytes:
        data = b""
        try:
            data = await anext(self._pieces, b"")
        except _expected(self._package) as error:
            failure = translate(self._package, error)
        else:
            return data
        finally:
            if not data:
                await self.aclose()
        raise failure

    async def aclose(self) -> None:
        expected = _expected(self._package)
        with contextlib.suppress(*expected):  # RuntimeError: another task reads; its read ends when the response is closed below
            await self._pieces.aclose()
        with contextlib.suppress(*expected):
            await self._response.aclose()


def translate(package: Any, error: Exception) -> TransportError:
    what = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if base.is_local(cause):
            return base.out_of_resources(what)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, RuntimeError) and not isinstance(error, package.StreamError):
        return TransportError(f"http_client cannot be used: {error}", sent="closed" not in str(error) or "loop" in str(error))
    if isinstance(error, package.ConnectTimeout | package.PoolTimeout):
        return base.no_connection("", in_time=False)
    if isinstance(error, package.ConnectError | package.ProxyError | package.UnsupportedProtocol | package.InvalidURL):
        return base.no_connection(what, "check base_url, and TLS and proxy of http_client")
    if isinstance(error, package.TimeoutException):
        return base.silence()
    broken = isinstance(error, package.RemoteProtocolError) and not re.search("disconnected|peer closed", str(error), re.IGNORECASE)
    return base.not_http(what, str(error)) if broken or isinstance(error, package.DecodingError) else base.broken(what)


def _expected(package: Any) -> tuple[type[Exception], ...]:
    return (package.HTTPError, package.InvalidURL, package.StreamError, OSError, RuntimeError)


def _client_of(endpoint: Endpoint, transport: Any) -> tuple[Any, Any, bool]:
    """Return the package, the client for an endpoint, and whether the client was made here and must be closed."""
    given = transport if endpoint.http_client is None else endpoint.http_client
    package: Any = http_package_of(given)
    names = endpoint.set_for_connections() if endpoint.http_client is None and endpoint.compute is None else ""
    if names and package is not None:
        raise ConfigError(
            f"endpoint {endpoint.name!r}: {names} has no effect with this transport; leave it out, or set transport='aiohttp'"
        )
    if endpoint.compute is None and package is not None:
        is_client = isinstance(given, package.AsyncClient)
        return package, given if is_client else package.AsyncClient(transport=given, trust_env=False), False
    package = importlib.import_module("httpx")
    if endpoint.compute is not None:
        app = package.ASGITransport(endpoint.compute.app, raise_app_exceptions=False)  # an exception of the application is a 500
        return package, package.AsyncClient(transport=app, trust_env=False), True
    limits = package.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=endpoint.keepalive)
    tls, proxy = connection_settings.tls_of(endpoint), connection_settings.proxy_of(endpoint)
    return package, package.AsyncClient(verify=tls, proxy=proxy, limits=limits, trust_env=False), True


async def _body_if_read(package: Any, response: Any) -> AsyncGenerator[bytes, None]:
    with contextlib.suppress(package.ResponseNotRead):
        yield bytes(response.content)
