"""A chat answered token by token, as server-sent events, at the pace of the endpoint. Knows no limits and no counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from aiohttp import web

from qreward.testing.answers import Chunks
from qreward.testing.delivery import UPSTREAM_FAILED, Incoming, Mishap, forever, hang_up, sleep_until
from qreward.testing.spec import Latency
from qreward.testing.timeline import Timeline

EARLY = ("cut", "stall", "truncated", "error_in_200", "malformed")  # faults that end a stream before its answer
_MOST_AT_ONCE = 1 << 16  # bytes in one write, for a client that is slow must hold the endpoint back
_BROKEN_EVENT = b'data: {"id": "chatcmpl-\n\n'
_NOISE = (b": keep-alive\n\n", b"\n", b"no field of any kind\n", b"x-unknown: 1\r\n", b"id: 7\r\n\r\n", b"retry: 1000\r", b":\r\r")


class Pace(NamedTuple):
    """When the tokens of an answer are due: ``length`` of them from ``begin`` on, a time of ``time.monotonic``."""

    begin: float
    latency: Latency
    timeline: Timeline
    length: int

    def due(self, number: int) -> tuple[float, str | None]:
        """When so many tokens are done, and the error that comes before, if one does."""
        return self.timeline.plan(self.begin, self.latency.seconds(number))


async def stream(
    request: Incoming, headers: dict[str, str], chunks: Chunks, pace: Pace, mishap: Mishap, finish: Callable[[str | None], None]
) -> web.StreamResponse:
    """Send the events from the time of the first token on, those that are due together in one write.

    ``finish`` is called with what goes wrong, or None, just before the last bytes are written.
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
            await asyncio.sleep(0)  # a client that reads as fast as it is written to holds nobody else up
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
