"""Sends responses of a fake endpoint, complete or streamed as server-sent events at the endpoint's speed, with the planned fault.

Uses aiohttp's requests and responses. Knows no limits and no counters, and does not decide which fault occurs.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, NamedTuple, NoReturn

from aiohttp import web

from qreward.testing import responders
from qreward.testing.lower_bound import Timeline
from qreward.testing.responders import Chunks
from qreward.testing.spec import Latency

JSON = "application/json"
TRICKLE_BYTES = 16
_LINGER_ZERO = struct.pack("ii", 1, 0)  # close with a reset


class Incoming(web.BaseRequest):
    """A request to a fake endpoint. ``dropped`` is True if the endpoint, not the client, closes the connection."""

    dropped = False
    __hash__ = object.__hash__  # the base class is a mapping and has no hash; requests are compared by identity


class FaultPlan(NamedTuple):
    """The fault of one response.

    Attributes:
        fault: its name in ``Faults``; None for no fault.
        point: share of the body that is sent before the fault, from 0 to 1.
        gap: seconds between the pieces of a ``slow_trickle``.
    """

    fault: str | None
    point: float
    gap: float

    @property
    def problem(self) -> str | None:
        """The fault, if it makes the response fail; else None."""
        return None if self.fault in ("slow_trickle", "noise") else self.fault


async def deliver(request: Incoming, body: bytes, headers: dict[str, str], mishap: FaultPlan) -> web.StreamResponse:
    """Send a response with status 200, altered by the fault."""
    fault, before = mishap.fault, int(len(body) * mishap.point)
    if fault in ("cut", "stall"):
        return await _in_pieces(request, body, headers, [body[:before]], 0, stalls=fault == "stall")
    if fault == "slow_trickle":
        pieces = [body[start : start + TRICKLE_BYTES] for start in range(0, len(body), TRICKLE_BYTES)]
        return await _in_pieces(request, body, headers, pieces, mishap.gap)
    if fault == "malformed":
        return web.Response(text=MALFORMED, content_type="text/html", headers=headers)
    if fault == "truncated":
        body = body[:before]
    elif fault == "error_in_200":
        body = UPSTREAM_FAILED
    elif fault == "noise":
        body = BLANKS + body
    return web.Response(body=body, content_type=JSON, headers=headers)


BLANKS = b" \r\n\t\n" * 200
MALFORMED = "<html><body><h1>Service page</h1></body></html>"
UPSTREAM_FAILED = responders.error("Provider returned error", "upstream_error", 502)


async def _in_pieces(
    request: Incoming, body: bytes, headers: dict[str, str], pieces: list[bytes], gap: float, *, stalls: bool = False
) -> web.StreamResponse:
    response = web.StreamResponse(headers={**headers, "Content-Type": JSON, "Content-Length": str(len(body))})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(gap)
    if sum(map(len, pieces)) < len(body):
        await (forever() if stalls else hang_up(request))
    return response


async def hang_up(request: Incoming) -> NoReturn:
    """Close the connection after the bytes written so far, even if ``Content-Length`` announced more. Ends in cancellation."""
    request.dropped = True
    if request.transport is not None:
        request.transport.close()
    await forever()


async def reset(request: Incoming) -> NoReturn:
    """Reset the connection. Ends in cancellation."""
    request.dropped = True
    abort(request.transport)
    await forever()


def abort(transport: Any) -> None:
    """Abort a connection; the peer sees a reset. Accepts the transport of any loop (uvloop's is no ``asyncio.Transport``), or None."""
    if transport is not None and not transport.is_closing():
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        transport.abort()


async def forever() -> NoReturn:
    """Wait until cancelled, because the client disconnects or the endpoint dies or closes."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody ends this future")


async def sleep_until(when: float) -> None:
    """Wait until a time of ``time.monotonic``, and never return early, although some loops round their timers to a millisecond."""
    if when == math.inf:
        await forever()
    while (left := when - time.monotonic()) > 0:  # noqa: ASYNC110 - waits for a time, not for an event
        await asyncio.sleep(max(left, 0.0005))


def hint(form: str | None, seconds: float) -> dict[str, str]:
    """The header with the seconds until a retry, rounded up, in the form of ``FakeEndpoint.retry_after``."""
    if form is None or seconds == math.inf:
        return {}
    if form == "ms":
        return {"retry-after-ms": str(math.ceil(seconds * 1000) + 1)}
    if form == "date":
        return {"Retry-After": formatdate(math.ceil(time.time() + seconds), usegmt=True)}
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


EARLY = ("cut", "stall", "truncated", "error_in_200", "malformed")  # faults that end a stream before its last token
_MOST_AT_ONCE = 1 << 16  # bytes in one write, so that a slow client exerts backpressure
_BROKEN_EVENT = b'data: {"id": "chatcmpl-\n\n'
_NOISE = (b": keep-alive\n\n", b"\n", b"no field of any kind\n", b"x-unknown: 1\r\n", b"id: 7\r\n\r\n", b"retry: 1000\r", b":\r\r")


class Pace(NamedTuple):
    """The schedule of a response's tokens: ``length`` tokens from ``begin`` on, a time of ``time.monotonic``."""

    begin: float
    latency: Latency
    timeline: Timeline
    length: int

    def due(self, number: int) -> tuple[float, str | None]:
        """The time at which this many tokens are done, and the error that occurs before, or None."""
        return self.timeline.plan(self.begin, self.latency.seconds(number))


async def stream(
    request: Incoming, headers: dict[str, str], chunks: Chunks, pace: Pace, mishap: FaultPlan, finish: Callable[[str | None], None]
) -> web.StreamResponse:
    """Send the events from the time of the first token on. Events that are due together are sent in one write.

    ``finish`` is called with the error, or None, just before the last bytes are written.
    """
    response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})
    early = mishap.fault if mishap.fault in EARLY else None
    gap = mishap.gap if mishap.fault == "slow_trickle" else 0.0
    noisy = mishap.fault == "noise"
    ready = bytearray()
    for number in range((pace.length if early is None else int(pace.length * mishap.point)) + 1):
        due, error = pace.due(number)
        due += gap * (number + 1)
        if due > time.monotonic() or len(ready) > _MOST_AT_ONCE:
            await _write(request, response, ready)
            await asyncio.sleep(0)  # a client that reads at once must not starve the other requests
            await sleep_until(due)
            ready.clear()
        if error is not None:
            await _break_off(request, response, ready, finish, error)
        if noisy:
            ready += _NOISE[number % len(_NOISE)]
        ready += chunks.piece(number - 1, pace.length) if number else chunks.first()
    if early in ("cut", "stall"):
        await _break_off(request, response, ready, finish, early)
    finish(early)
    await _write(request, response, ready + _ending(early, chunks))
    return response


async def _break_off(
    request: Incoming, response: web.StreamResponse, ready: bytes | bytearray, finish: Callable[[str | None], None], problem: str
) -> NoReturn:
    finish(problem)
    await _write(request, response, ready)
    await (forever() if problem == "stall" else hang_up(request))


async def _write(request: Incoming, response: web.StreamResponse, ready: bytes | bytearray) -> None:
    if not response.prepared:
        await response.prepare(request)
    if ready:
        await response.write(bytes(ready))


def _ending(fault: str | None, chunks: Chunks) -> bytes:
    if fault is None:
        return chunks.last()
    endings = {"truncated": b"", "error_in_200": b"data: " + UPSTREAM_FAILED + b"\n\n", "malformed": _BROKEN_EVENT}
    return endings[fault]
