"""Checks of a request before it is scored: the token, the request rate, the queue length, the memory, and the limits of its body."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from qreward.batching.reward_buffer import RewardBuffer
from qreward.server.config import ServerConfig, is_loopback
from qreward.server.http_errors import HTTPError, busy

Receive = Callable[[], Awaitable[Any]]
_MEMORY_RETRY = 1.0
"""Retry time in seconds while memory is full. The value is fixed, because it is not known when memory will be free."""


class ClientDisconnected(Exception):
    """The caller has closed the connection."""


class Admission:
    """Applies the limits of one server. ``pending`` is the number of bytes of all requests that the server reads or has not answered."""

    def __init__(self, config: ServerConfig, buffer: RewardBuffer) -> None:
        self.config = config
        self._buffer = buffer
        self._paid_until = 0.0  # time of the GCRA algorithm: each admitted request moves it forward by 1 / rate
        self.pending = 0

    def enter(self) -> None:
        """Admit a scoring request before its body is read. Raise ``HTTPError`` if the queue is full or the rate is exceeded."""
        if (seconds := self._buffer.room_in(1)) > 0:
            raise busy("queue_full", f"{self._buffer.waiting} completions wait to be scored, and the queue is full", seconds)
        if (rate := self.config.rate) is None:
            return
        now = asyncio.get_running_loop().time()
        paid_until = max(self._paid_until, now) + 1 / rate
        if (seconds := paid_until - now - max(1.0, rate) / rate) > 1e-9:
            raise busy("rate_limited", f"more than {rate:g} requests came in a second", seconds)
        self._paid_until = paid_until


class MemoryReservation:
    """Reserves memory for one request. The memory is released when the ``with`` block ends."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.bytes = 0

    def grow(self, count: int) -> None:
        """Reserve ``count`` more bytes, or raise ``HTTPError``."""
        pending = self._admission.pending
        if pending + count > self._admission.config.max_pending_bytes:
            raise busy("memory_full", f"the pending requests hold {pending} bytes, and this one exceeds the limit", _MEMORY_RETRY)
        self._admission.pending += count
        self.bytes += count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admission.pending -= self.bytes


def check_caller(scope: Mapping[str, Any], config: ServerConfig) -> None:
    """Raise ``HTTPError`` unless the request contains the token."""
    if config.token is None:
        host = (scope.get("server") or ("",))[0]
        is_address = host[:1].isdigit() or ":" in host  # False for a name, or for the path of a Unix socket
        if is_address and not is_loopback(host):
            message = "a server without a token answers only requests from its own machine; set token in its configuration"
            raise HTTPError(403, "forbidden", message)
        return
    given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
    scheme, _, token = given.partition(b" ")
    right = hmac.compare_digest(token.strip(), config.token.get_secret_value().encode())
    if scheme.lower() != b"bearer" or not right:
        raise HTTPError(401, "unauthorized", "send the server's token as 'Authorization: Bearer ...'", {"www-authenticate": "Bearer"})


async def read_body(receive: Receive, headers: Mapping[str, str], held: MemoryReservation, config: ServerConfig) -> bytes:
    """Read the whole body."""
    most = config.max_body_bytes
    too_large = HTTPError(413, "body_too_large", f"the request is longer than {most} bytes; send fewer completions at once")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPError(415, "packed_body", "send the body uncompressed, without a content-encoding")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise too_large
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(config.body_timeout):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                parts.append(message.get("body", b""))
                held.grow(len(parts[-1]))
                if held.bytes > most:
                    raise too_large
                more = message.get("more_body", False)
    except TimeoutError:
        text = f"the request body did not arrive completely within {config.body_timeout:g} s"
        raise HTTPError(408, "body_timeout", text, {"connection": "close"}) from None
    return b"".join(parts)


async def unless_disconnected(receive: Receive, work: Awaitable[Any]) -> Any:
    """Return the result of ``work``. If the caller disconnects, cancel ``work`` and raise ``ClientDisconnected``."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})
        if not task.cancelled():
            task.exception()  # marks the error as retrieved if the work failed while its caller disconnected


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
