"""The base classes of transports and of their responses, and the errors of both."""

from __future__ import annotations

import asyncio
import errno
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Mapping

from qreward.codecs.base import Reply, TransportError


class ByteStream(ABC):
    """An HTTP response whose body has not been read yet. ``headers`` is case-insensitive. Only one task at a time may read the body."""

    __slots__ = ("headers", "status")

    status: int
    headers: Mapping[str, str]

    @abstractmethod
    async def read(self) -> bytes:
        """Wait for at least one byte, and return what has arrived; ``b""`` at the end. Raises ``TransportError``, and closes then."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the stream, and its connection unless the body was read to its end. May be called again, and while another task reads."""

    async def drain(self, seconds: float) -> None:
        """Release the connection for other requests if the body ends within ``seconds``; otherwise close the connection. Raises nothing."""
        try:
            async with asyncio.timeout(seconds):
                while await self.read():
                    pass
        except (TransportError, TimeoutError):  # ``read`` has already closed the connection
            pass

    async def read_whole(self, cap: int) -> Reply:
        """Return the whole response and close the stream. Raises ``TransportError``, also if the body is longer than ``cap`` bytes."""
        body = bytearray()
        try:
            while len(body) <= cap and (piece := await self.read()):
                body += piece
        except TransportError:
            if 200 <= self.status < 300:
                raise  # otherwise the status says more than the break
        finally:
            await self.aclose()
        if len(body) > cap:
            raise too_long(cap)
        return Reply(self.status, self.headers, bytes(body))


Body = bytes | AsyncIterable[bytes] | None
"""The body of a request: bytes, an iterable, or None for no body. Each piece of an iterable is read just before it is sent."""


class HttpTransport(ABC):
    """Holds the connections to one endpoint, in one event loop. ``cap`` is the maximum number of bytes in the body of a response.

    A path is relative to ``base_url``, unless it is a whole URL of the same server.
    """

    cap: int

    @abstractmethod
    async def begin(self, method: str, path: str, body: Body, headers: Mapping[str, str] | None) -> ByteStream:
        """Send a request, a POST exactly once, and return when the headers of the response have arrived. Raises ``TransportError``."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections."""

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read the whole response. ``AiohttpTransport`` has a faster way of its own."""
        return await (await self.begin("POST", path, body, headers)).read_whole(self.cap)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return await (await self.begin("GET", path, None, headers)).read_whole(self.cap)


_LOCAL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""Reasons in OpenSSL's errors that mean that the server's answer to the ClientHello is not TLS."""


def is_local(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _LOCAL


def out_of_resources(reason: str) -> TransportError:
    return TransportError(f"this machine cannot open another connection ({reason}); raise `ulimit -n`", sent=False, local=True)


def closed() -> TransportError:
    return TransportError("the client was closed before the request was sent; make a new one", sent=False)


CHECK_SERVER = "check base_url, and that the server is up"
CHECK_PROXY = "check proxy, or HTTP_PROXY and HTTPS_PROXY in the environment, and that the proxy is up"


def no_connection(reason: str, advice: str = CHECK_SERVER, *, in_time: bool = True) -> TransportError:
    why = f"({reason})" if in_time else "within timeouts.connect"
    return TransportError(f"no connection {why}; {advice}", sent=False, timeout=not in_time)


def silence() -> TransportError:
    return TransportError("no data for longer than timeouts.read", timeout=True)


def not_http(what: str, words: str) -> TransportError:
    """Return the error for a response that is not valid HTTP. Of the library's words, those that quote the response are left out."""
    words = re.split(r":?\s*(?:\n|\bb['\"]|\bbytearray)", words)[0].strip(" .:(")
    return TransportError(
        f"the answer is not proper HTTP ({what}{': ' if words else ''}{words}); check the host and port of base_url", malformed=True
    )


def too_long(cap: int) -> TransportError:
    return TransportError(f"the answer is longer than max_response_bytes ({cap}); raise it, or ask for less", malformed=True)


def broken(reason: str) -> TransportError:
    return TransportError(f"the connection broke before the answer was complete ({reason})")
