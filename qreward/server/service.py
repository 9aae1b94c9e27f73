"""A reward server without its HTTP routes: admission, scoring, metrics and shutdown. Each app has one ``Service``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from qreward.batching import BatchRecord
from qreward.batching.reward_buffer import RewardBuffer, ScoreResult
from qreward.errors import BadRequest, ClientClosed, QueueFull
from qreward.server.config import ServerConfig
from qreward.server.forms import ScoreRequest
from qreward.server.http_errors import HTTPError, busy, draining, invalid
from qreward.server.metrics import SECONDS, SIZES, MetricFamily, exposition
from qreward.server.responses import answer

Read = Callable[[bytes, ServerConfig], ScoreRequest]
Receive = Callable[[], Awaitable[Any]]
_ABORT_TIMEOUT = 1.0
"""Maximum number of seconds in which aborted requests can report their errors to callers."""
_MEMORY_RETRY = 1.0
"""Retry time in seconds while memory is full. The value is fixed, because it is not known when memory will be free."""


class ClientDisconnected(Exception):
    """The caller has closed the connection."""


class Service:
    def __init__(self, scorer: Any, config: ServerConfig) -> None:
        self.config = config
        self.buffer = RewardBuffer(
            scorer,
            server_mode=config.mode,
            max_batch_size=config.max_batch_size,
            batch_wait_timeout_s=config.batch_wait_timeout_s,
            max_concurrent_batches=config.max_concurrent_batches,
            max_queue_size=config.max_queue,
            timeout=config.timeout,
            isolate_errors=config.isolate_errors,
            on_batch=self._count_batch,
        )
        self.pending = 0  # bytes of all requests that the server reads or has not answered
        self._paid_until = 0.0  # time of the GCRA algorithm: each admitted request moves it forward by 1 / rate
        self.active = 0
        self.draining = False
        self._idle = asyncio.Event()
        self.requests, self.rejections, self.completions = MetricFamily("route", "status"), MetricFamily("reason"), MetricFamily("outcome")
        self.seconds, self.batch_seconds = MetricFamily("route", bounds=SECONDS), MetricFamily(bounds=SECONDS)
        self.waits, self.sizes = MetricFamily(bounds=SECONDS), MetricFamily(bounds=SIZES)

    async def rewards(self, receive: Receive, headers: Mapping[str, str], read: Read) -> bytes:
        """Score a request and return the response body. Raises ``HTTPError``, or ``ClientDisconnected`` if the caller has left."""
        self.admit()
        parts: list[bytes] = []
        try:
            await self._read_body(receive, headers, parts)
            score_request = read(b"".join(parts), self.config)
            scored = await _unless_disconnected(receive, self._score(score_request))
            return answer(score_request, scored, self.config.model, self.config.mode)
        finally:
            self.pending -= sum(map(len, parts))

    def admit(self) -> None:
        """Admit a scoring request before its body is read. Raise ``HTTPError`` if the queue is full or the rate is exceeded."""
        if (seconds := self.buffer.room_in(1)) > 0:
            raise busy("queue_full", f"{self.buffer.waiting} completions wait to be scored, and the queue is full", seconds)
        if (rate := self.config.rate) is None:
            return
        now = asyncio.get_running_loop().time()
        paid_until = max(self._paid_until, now) + 1 / rate
        if (seconds := paid_until - now - max(1.0, rate) / rate) > 1e-9:
            raise busy("rate_limited", f"more than {rate:g} requests came in a second", seconds)
        self._paid_until = paid_until

    async def _read_body(self, receive: Receive, headers: Mapping[str, str], parts: list[bytes]) -> None:
        """Read the body into ``parts``, whose bytes are ``pending``."""
        config, most, length = self.config, self.config.max_body_bytes, 0
        too_large = HTTPError(413, "body_too_large", f"the request is longer than {most} bytes; send fewer completions at once")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPError(415, "packed_body", "send the body uncompressed, without a content-encoding")
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
            raise too_large
        try:
            async with asyncio.timeout(config.body_timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    part = message.get("body", b"")
                    if self.pending + len(part) > config.max_pending_bytes:
                        text = f"the pending requests hold {self.pending} bytes, and this one exceeds the limit"
                        raise busy("memory_full", text, _MEMORY_RETRY)
                    parts.append(part)
                    self.pending += len(part)
                    length += len(part)
                    if length > most:
                        raise too_large
                    more = message.get("more_body", False)
        except TimeoutError:
            text = f"the request body did not arrive completely within {config.body_timeout:g} s"
            raise HTTPError(408, "body_timeout", text, {"connection": "close"}) from None

    async def _score(self, score_request: ScoreRequest) -> list[ScoreResult]:
        query = score_request.query
        try:
            scored = await self.buffer.score(query.completions, query.metadata)
        except QueueFull as error:
            raise busy("queue_full", str(error), self.buffer.room_in(len(query.completions))) from None
        except ClientClosed:
            raise draining() from None
        except BadRequest as error:
            raise invalid([], str(error)) from None
        missing = sum(one.reward is None for one in scored)
        self.completions.add("failed", amount=missing)
        self.completions.add("scored", amount=len(scored) - missing)
        return scored

    # shutdown

    def begin(self) -> None:
        self.active += 1
        self._idle.clear()

    def end(self) -> None:
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def drain(self) -> bool:
        """Accept no new requests, and finish the running requests."""
        self.draining = True
        try:
            async with asyncio.timeout(self.config.drain_timeout):
                if self.active:
                    await self._idle.wait()
                await self.buffer.close()
        except TimeoutError:
            await self.abort()
            return False
        return True

    async def abort(self) -> None:
        """Fail the waiting and running completions. A scorer that runs in a thread is not stopped."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_TIMEOUT):
                await self.buffer.close(drain=False)

    # metrics

    def _count_batch(self, record: BatchRecord) -> None:
        self.batch_seconds.add(amount=record.seconds)
        self.sizes.add(amount=record.items)
        for wait in record.waits:
            self.waits.add(amount=wait)

    def metrics(self) -> str:
        stats = self.buffer.stats()
        return exposition(
            {
                "qreward_server_requests_total": ("Responses, by route and status.", self.requests),
                "qreward_server_request_seconds": ("Seconds from request to response, by route.", self.seconds),
                "qreward_server_rejections_total": ("Requests that got no rewards, by reason.", self.rejections),
                "qreward_server_completions_total": ("Completions that were scored, and that failed.", self.completions),
                "qreward_server_active_requests": ("Requests in flight.", self.active),
                "qreward_server_pending_bytes": ("Bytes of requests that wait for a response.", self.pending),
                "qreward_server_draining": ("1 while the server shuts down.", self.draining),
                "qreward_serve_batch_queue_length": ("Completions that wait for a batch.", self.buffer.waiting),
                "qreward_serve_batch_in_flight": ("Batches in flight.", stats.in_flight),
                "qreward_serve_batch_wait_time_seconds": ("Seconds that a completion waited for its batch.", self.waits),
                "qreward_serve_batch_execution_time_seconds": ("Seconds that the scorer took for a batch.", self.batch_seconds),
                "qreward_serve_actual_batch_size": ("Completions in a batch.", self.sizes),
            }
        )


async def _unless_disconnected(receive: Receive, work: Awaitable[Any]) -> Any:
    """Return the result of ``work``. If the caller disconnects, cancel ``work`` and raise ``ClientDisconnected``."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
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
