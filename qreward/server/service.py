"""A reward server without its HTTP routes: scoring, admission, metrics and shutdown. Each app has one ``Service``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request

from qreward.batching import BatchRecord
from qreward.batching.reward_buffer import RewardBuffer, ScoreResult
from qreward.errors import BadRequest, ClientClosed, QueueFull
from qreward.server.admission import Admission, MemoryReservation, read_body, unless_disconnected
from qreward.server.config import ServerConfig
from qreward.server.forms import ScoreRequest
from qreward.server.http_errors import busy, draining, invalid
from qreward.server.metrics import SECONDS, SIZES, Counter, Histogram, exposition
from qreward.server.responses import answer

Read = Callable[[bytes, ServerConfig], ScoreRequest]
_ABORT_TIMEOUT = 1.0
"""Maximum number of seconds in which aborted requests can report their errors to callers."""


class Service:
    """Holds the state and the operations that the routes of an app share."""

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
        self.admission = Admission(config, self.buffer)
        self.active = 0
        self.draining = False
        self._idle = asyncio.Event()
        self.requests, self.rejections, self.completions = Counter("route", "status"), Counter("reason"), Counter("outcome")
        self.seconds, self.batch_seconds = Histogram(SECONDS, "route"), Histogram(SECONDS)
        self.waits, self.sizes = Histogram(SECONDS), Histogram(SIZES)

    async def rewards(self, request: Request, read: Read) -> bytes:
        """Score a request and return the response body. Raises ``HTTPError``, or ``ClientDisconnected`` if the caller has left."""
        self.admission.enter()
        with MemoryReservation(self.admission) as held:
            score_request = read(await read_body(request.receive, request.headers, held, self.config), self.config)
            scored = await unless_disconnected(request.receive, self._score(score_request))
            return answer(score_request, scored, self.config.model, self.config.mode)

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
        """Count a request as running."""
        self.active += 1
        self._idle.clear()

    def end(self) -> None:
        """Count a request as answered."""
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
        self.batch_seconds.observe(record.seconds)
        self.sizes.observe(record.items)
        for wait in record.waits:
            self.waits.observe(wait)

    def metrics(self) -> str:
        """Return all metrics in the Prometheus text format."""
        stats = self.buffer.stats()
        return exposition(
            {
                "qreward_server_requests_total": ("Responses, by route and status.", self.requests),
                "qreward_server_request_seconds": ("Seconds from request to response, by route.", self.seconds),
                "qreward_server_rejections_total": ("Requests that got no rewards, by reason.", self.rejections),
                "qreward_server_completions_total": ("Completions that were scored, and that failed.", self.completions),
                "qreward_server_active_requests": ("Requests in flight.", self.active),
                "qreward_server_pending_bytes": ("Bytes of requests that wait for a response.", self.admission.pending),
                "qreward_server_draining": ("1 while the server shuts down.", self.draining),
                "qreward_serve_batch_queue_length": ("Completions that wait for a batch.", self.buffer.waiting),
                "qreward_serve_batch_in_flight": ("Batches in flight.", stats.in_flight),
                "qreward_serve_batch_wait_time_seconds": ("Seconds that a completion waited for its batch.", self.waits),
                "qreward_serve_batch_execution_time_seconds": ("Seconds that the scorer took for a batch.", self.batch_seconds),
                "qreward_serve_actual_batch_size": ("Completions in a batch.", self.sizes),
            }
        )
