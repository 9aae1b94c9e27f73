"""The base classes of transports and of their responses, their errors, and the transport that adds an API key that expires."""

from __future__ import annotations

import asyncio
import errno
import inspect
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from qreward.codecs.base import Reply, TransportError
from qreward.settings.base import check_header
from qreward.settings.policies import ApiKey


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


AHEAD = 0.1
"""Share (0 to 1) of the lifetime of a key. So long before its end, a new key is obtained."""
LONGEST = 60.0
"""Maximum number of seconds that a command may take."""


class KeyedTransport(HttpTransport):
    """Sends requests with the present key. A request that is refused (401) is sent once more if another key can be obtained."""

    def __init__(self, inner: HttpTransport, key: ApiKey) -> None:
        self._inner, self._key, self.cap = inner, key, inner.cap

    async def begin(self, method: str, path: str, body: Body, headers: Mapping[str, str] | None) -> ByteStream:
        def send(key: str) -> Coroutine[Any, Any, ByteStream]:
            return self._inner.begin(method, path, body, {"Authorization": f"Bearer {key}", **(headers or {})})

        stream = await send(key := await self._current())
        if stream.status == 401 and (body is None or isinstance(body, bytes)) and (new := await self._current(key)) != key:
            await stream.aclose()
            stream = await send(new)
        return stream

    async def _current(self, refused: str | None = None) -> str:
        try:
            return await current_key(self._key, refused)
        except Exception as error:  # its text may hold secrets
            failure = TransportError(f"no API key: {self._key!r} failed with {type(error).__name__}", sent=False)
        raise failure

    async def aclose(self) -> None:
        await self._inner.aclose()


async def current_key(key: ApiKey, refused: str | None = None) -> str:
    """Return the key, after it was obtained if needed, or if the server has ``refused`` it. Raises what the function raises."""
    state, before = key.state, key.state.count
    while True:
        with state.lock:
            if state.keys and monotonic() < state.until and (state.keys[-1] != refused or state.count > before):
                return state.keys[-1]
            pending, mine = state.pending, state.pending is None
            if pending is None:
                pending = state.pending = Future()
        if mine:
            await _obtain(key, pending)
            continue
        await asyncio.wait([asyncio.wrap_future(pending)])
        if (error := pending.exception()) is not None:
            raise error


async def _obtain(key: ApiKey, pending: Future[None]) -> None:
    """Obtain a key and end ``pending``. If the caller is cancelled, one of those that wait obtains the key."""
    state, source, failure, text = key.state, key.source, None, ""
    found: Any
    try:
        if callable(source):
            found = await asyncio.to_thread(source)  # the call of an async function only creates its coroutine
        else:
            run = partial(subprocess.run, capture_output=True, text=True, check=True, timeout=LONGEST, stdin=subprocess.DEVNULL)
            found = (await asyncio.to_thread(run, source)).stdout
        text = (await found if inspect.isawaitable(found) else found).strip()
        check_header("authorization", text or "\n")
    except Exception as error:
        text, failure = "", error
        raise
    finally:
        with state.lock:
            state.pending = None
            if text:
                state.keys.append(text)
                state.count += 1
                state.until = inf if key.seconds is None else monotonic() + (1 - AHEAD) * key.seconds
        pending.set_result(None) if failure is None else pending.set_exception(failure)
