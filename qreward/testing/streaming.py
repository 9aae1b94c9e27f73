"""A chat answered token by token, as server-sent events, at the pace of the endpoint. Knows no limits and no counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from aiohttp import web

from qreward.testing.answers import Chunks
from qreward.testing.delivery import UPSTREAM_FAILED, Incoming, hang_up, sleep_until
from qreward.testing.spec import Latency
from qreward.testing.timeline import Timeline

EARLY = ("cut", "truncated", "error_in_200", "malformed")  # faults that end a stream half way
_BROKEN_EVENT = b'data: {"id": "chatcmpl-\n\n'


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
    request: Incoming,
    headers: dict[str, str],
    chunks: Chunks,
    pace: Pace,
    fault: str | None,
    trickle_gap: float,
    finish: Callable[[str | None], None],
) -> web.StreamResponse:
    """Send the events from the time of the first token on, those that are due together in one write.

    ``finish`` is called with what goes wrong, or None, just before the last bytes are written.
    """
    response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})
    early = fault if fault in EARLY else None
    gap = trickle_gap if fault == "slow_trickle" else 0.0
    ready = b""
    for number in range((pace.length if early is None else pace.length // 2) + 1):
        due, error = pace.due(number)
        due += gap * (number + 1)
        if due > time.monotonic():
            await _write(request, response, ready)
            await sleep_until(due)
            ready = b""
        if error is not None:
            await _break_off(request, response, ready, finish, error)
        ready += chunks.piece(number - 1, pace.length) if number else chunks.first()
    if early == "cut":
        await _break_off(request, response, ready, finish, early)
    finish(early)
    await _write(request, response, ready + _ending(early, chunks))
    return response


async def _break_off(
    request: Incoming, response: web.StreamResponse, ready: bytes, finish: Callable[[str | None], None], problem: str
) -> NoReturn:
    finish(problem)
    await _write(request, response, ready)
    await hang_up(request)


async def _write(request: Incoming, response: web.StreamResponse, ready: bytes) -> None:
    if not response.prepared:
        await response.prepare(request)
    if ready:
        await response.write(ready)


def _ending(fault: str | None, chunks: Chunks) -> bytes:
    if fault is None:
        return chunks.last()
    endings = {"truncated": b"", "error_in_200": b"data: " + UPSTREAM_FAILED + b"\n\n", "malformed": _BROKEN_EVENT}
    return endings[fault]


async def _flush(request: Incoming, response: web.StreamResponse, ready: bytes) -> bytes:
    if ready:
        if not response.prepared:
            await response.prepare(request)
        await response.write(ready)
    return b""
