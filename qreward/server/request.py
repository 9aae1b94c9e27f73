"""Incoming requests: authentication, reading the body within its limits, and disconnects. Knows HTTP; knows nothing of rewards."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from qreward.server.admission import MemoryReservation
from qreward.server.config import ServerConfig, is_loopback
from qreward.server.http_errors import HTTPError, too_large

Receive = Callable[[], Awaitable[Any]]


class ClientDisconnected(Exception):
    """The caller has closed the connection."""


def check_caller(scope: Mapping[str, Any], config: ServerConfig) -> None:
    """Raise ``HTTPError`` unless the request carries the token.

    Without a configured token, raise it if the request arrived at an IP address that other machines can reach.
    """
    if config.token is None:
        host = (scope.get("server") or ("",))[0]
        if _is_address(host) and not is_loopback(host):
            raise HTTPError(
                403, "forbidden", "a server without a token answers only requests from its own machine; set token in its configuration"
            )
        return
    given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
    scheme, _, token = given.partition(b" ")
    right = hmac.compare_digest(token.strip(), config.token.get_secret_value().encode())
    if scheme.lower() != b"bearer" or not right:
        raise HTTPError(401, "unauthorized", "send the server's token as 'Authorization: Bearer ...'", {"www-authenticate": "Bearer"})


def _is_address(host: str) -> bool:
    """Whether the host is an IP address, rather than a name or the path of a Unix socket."""
    return host[:1].isdigit() or ":" in host


async def read_body(receive: Receive, headers: Mapping[str, str], held: MemoryReservation, config: ServerConfig) -> bytes:
    """Read the whole body.

    Raises:
        HTTPError: the body is too long, too slow or compressed, or there is no memory for it.
        ClientDisconnected: the caller has closed the connection.
    """
    most = config.max_body_bytes
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPError(415, "packed_body", "send the body as it is, without a content-encoding")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise too_large(most)
    try:
        async with asyncio.timeout(config.body_timeout):
            return await _read(receive, held, most)
    except TimeoutError:
        message = f"the request did not come whole within {config.body_timeout:g} s"
        raise HTTPError(408, "body_timeout", message, {"connection": "close"}) from None


async def _read(receive: Receive, held: MemoryReservation, most: int) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        held.grow(len(part))
        if held.bytes > most:
            raise too_large(most)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def unless_gone(receive: Receive, work: Awaitable[Any]) -> Any:
    """Return the result of ``work``. If the caller disconnects, cancel it and raise ``ClientDisconnected``."""
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
