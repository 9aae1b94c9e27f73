"""Sends the responses of a fake endpoint. ``FAULTS`` maps each name of a fault in ``Faults`` to the behaviour of the server."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, NoReturn

from aiohttp import web

from qreward.testing.openai_api import Chunks, error

JSON = "application/json"
_LINGER_ZERO = struct.pack("ii", 1, 0)  # value of the socket option with which a close sends a reset
_MOST_AT_ONCE = 1 << 16  # bytes after which a write begins, so that a slow client exerts backpressure
_BLANKS = b" \r\n\t\n" * 200
_MALFORMED = b"<html><body><h1>Service page</h1></body></html>"
_UPSTREAM_FAILED = error("Provider returned error", "upstream_error", 502)
_TRICKLE_BYTES = 16
_NOISE = (b": keep-alive\n\n", b"\n", b"no field of any kind\n", b"x-unknown: 1\r\n", b"id: 7\r\n\r\n", b"retry: 1000\r", b":\r\r")


class Fault(NamedTuple):
    """Describes the behaviour of the server in a fault. A fault occurs at once, or while the server sends the body of the response."""

    at_once: bool = False
    status: int = 200
    then: Literal["answer", "reset", "hang_up", "wait"] = "answer"
    cut: bool = False
    body: bytes | None = None
    content_type: str = "application/json"
    prefix: bytes = b""
    pieces: int = 0
    tail: bytes | None = None
    noise: tuple[bytes, ...] = ()
    fails: bool = True


NO_FAULT = Fault(fails=False)
FAULTS: Mapping[str, Fault] = {
    "reset": Fault(at_once=True, then="reset"),
    "error_500": Fault(at_once=True, status=500),
    "error_503": Fault(at_once=True, status=503),
    "hang": Fault(at_once=True, then="wait"),
    "truncated": Fault(cut=True, tail=b""),
    "error_in_200": Fault(body=_UPSTREAM_FAILED, tail=b"data: " + _UPSTREAM_FAILED + b"\n\n"),
    "cut": Fault(cut=True, then="hang_up", tail=b""),
    "malformed": Fault(body=_MALFORMED, content_type="text/html", tail=b'data: {"id": "chatcmpl-\n\n'),
    "stall": Fault(cut=True, then="wait", tail=b""),
    "slow_trickle": Fault(pieces=_TRICKLE_BYTES, fails=False),
    "noise": Fault(prefix=_BLANKS, noise=_NOISE, fails=False),
}


class Incoming(web.BaseRequest):
    """Represents a request to a fake endpoint. ``dropped`` is True if the endpoint, and not the client, closes the connection."""

    dropped = False
    __hash__ = object.__hash__  # the base class is a mapping and has no hash; requests are compared by identity


class FaultPlan(NamedTuple):
    name: str | None
    point: float
    gap: float

    @property
    def fault(self) -> Fault:
        return NO_FAULT if self.name is None else FAULTS[self.name]

    @property
    def problem(self) -> str | None:
        """The name of the fault if the fault makes the response fail; otherwise None."""
        return self.name if self.fault.fails else None


async def deliver(request: Incoming, body: bytes, headers: dict[str, str], plan: FaultPlan) -> web.StreamResponse:
    """Send a response with status 200, altered by the fault."""
    fault = plan.fault
    sent = body[: int(len(body) * plan.point)] if fault.cut else fault.prefix + (body if fault.body is None else fault.body)
    if fault.then == "answer" and not fault.pieces:
        return web.Response(body=sent, content_type=fault.content_type, headers=headers)
    response = web.StreamResponse(headers={**headers, "Content-Type": fault.content_type, "Content-Length": str(len(body))})
    await response.prepare(request)
    step = fault.pieces or max(1, len(sent))
    for start in range(0, len(sent), step):
        await response.write(sent[start : start + step])
        await asyncio.sleep(plan.gap if fault.pieces else 0)
    await end(request, fault)
    return response


async def end(request: Incoming, fault: Fault) -> None:
    """End a response in the way that ``fault.then`` names. If ``fault.then`` is not ``answer``, wait until the request is cancelled."""
    if fault.then == "answer":
        return
    if fault.then != "wait":
        request.dropped = True
        if fault.then == "reset":
            abort(request.transport)
        elif request.transport is not None:
            request.transport.close()
    await forever()


def abort(transport: Any) -> None:
    if transport is not None:
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        transport.abort()  # also called for a closing transport, which would wait until the client has read all data


async def forever() -> NoReturn:
    """Wait until this call is cancelled. The call is cancelled when the client disconnects, or when the endpoint dies or closes."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("this future never ends")


async def sleep_until(when: float) -> None:
    """Wait until a time of ``time.monotonic``. Never returns early, even on loops that round their timers to a millisecond."""
    if when == math.inf:
        await forever()
    while (left := when - time.monotonic()) > 0:  # noqa: ASYNC110 - waits for a time, not for an event
        await asyncio.sleep(max(left, 0.0005))


def hint(form: str | None, seconds: float) -> dict[str, str]:
    """Return the header with the time until a retry, rounded up. ``form`` is the setting ``FakeEndpoint.retry_after``."""
    if form is None or seconds == math.inf:
        return {}
    if form == "ms":
        return {"retry-after-ms": str(math.ceil(seconds * 1000) + 1)}
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


async def stream(
    request: Incoming,
    headers: dict[str, str],
    chunks: Chunks,
    length: int,
    due: Callable[[int], tuple[float, str | None]],
    plan: FaultPlan,
    finish: Callable[[str | None], None],
) -> web.StreamResponse:
    """Stream a response: send each event when its token is ``due``. Events that are due together are sent in one write."""
    response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})
    fault, ready = plan.fault, bytearray()

    async def write() -> None:
        if not response.prepared:
            await response.prepare(request)
        if ready:
            await response.write(bytes(ready))
        ready.clear()

    for number in range((length if fault.tail is None else int(length * plan.point)) + 1):
        when, failure = due(number)
        if fault.pieces:
            when += plan.gap * (number + 1)
        if when > time.monotonic() or len(ready) > _MOST_AT_ONCE:
            await write()
            await asyncio.sleep(0)  # a client that reads at once must not starve the other requests
            await sleep_until(when)
        if failure is not None:
            finish(failure)
            ready += chunks.failed() or b""
            await write()
            await end(request, NO_FAULT if chunks.failed() else FAULTS["cut"])
            return response
        if fault.noise:
            ready += fault.noise[number % len(fault.noise)]
        ready += chunks.piece(number - 1, length) if number else chunks.first()
    finish(plan.problem)
    ready += chunks.last() if fault.tail is None else fault.tail
    await write()
    await end(request, fault)
    return response
