"""Request handling of a fake endpoint: admit or reject a request, wait for its service time, and respond, possibly with a fault.

Uses aiohttp's requests and responses and the state of one endpoint. Opens and closes no socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from aiohttp import web

from qreward.testing import responders
from qreward.testing.admission import Slot
from qreward.testing.endpoint import FakeEndpointState
from qreward.testing.lower_bound import Job, ListRequest, Problem, refuses
from qreward.testing.responders import ChatRequest, Chunks, EmbeddingsRequest
from qreward.testing.responses import JSON, FaultPlan, Incoming, Pace, deliver, forever, hint, reset, sleep_until, stream
from qreward.testing.rewards.dialect import Dialect, Look, ReadJob, Told, Traffic
from qreward.testing.rewards.kinds import DIALECTS

_FAILURES = {500: "The server had an error while processing the request.", 503: "The server is not ready."}
_ROUTES = {kind: dialect.routes() for kind, dialect in DIALECTS.items()}


class Handler:
    """Serves the requests of one endpoint.

    Args:
        state: of the endpoint.
        phases_changed: called when the arrival of a request has begun a phase.
    """

    def __init__(self, state: FakeEndpointState, phases_changed: Callable[[], None]) -> None:
        self._state = state
        self._phases_changed = phases_changed
        self.under_way: set[Incoming] = set()
        self._answers = 0
        self._traffic = Traffic()

    @property
    def _dialect(self) -> Dialect:
        return DIALECTS[self._state.spec.kind]

    async def __call__(self, request: Incoming) -> web.StreamResponse:
        path = request.path
        read_job = _ROUTES[self._state.spec.kind].get(path)
        try:
            if read_job is not None and request.method == "POST":
                return await self._counted(request, read_job)
            return await self._look_up(request, path)
        except Problem as problem:
            return self._refuse(problem)

    async def _counted(self, request: Incoming, read_job: ReadJob) -> web.StreamResponse:
        """Serve a request and count its outcome."""
        state, now = self._state, time.monotonic()
        counters = state.counters
        counters.arrived(now - state.epoch)
        self.under_way.add(request)
        try:
            if state.timeline.count(counters.requests, now):
                self._phases_changed()
            return await self._admitted(request, read_job(await request.read(), state.spec))
        except Problem as problem:
            counters.ended_in(problem.kind)
            raise
        except (asyncio.CancelledError, ConnectionError) as error:
            if not request.dropped:
                counters.disconnects += 1
            if isinstance(error, ConnectionError):  # raised by a write: the client has disconnected, and a cancellation follows
                await forever()
            raise
        finally:
            self.under_way.discard(request)

    async def _admitted(self, request: Incoming, job: Job) -> web.StreamResponse:
        """Admit the request. The checks are, in this order: key, model, phase, free slot, rate limits."""
        state = self._state
        self._check_key(request)
        state.counters.recognise(job.digest)
        model = job.asked.model
        if model is not None and not state.serves(model):
            told = self._told(request, 404, f"The model {model!r} does not exist.", "invalid_request_error", "model_not_found")
            raise Problem(404, told, "unknown_model")
        await self._check_phase(request)
        if state.gate.full and state.spec.over_cap == "reject":
            raise await self._rejection(request, None, state.gate.next_free())
        over = await state.rates.admit(job.tokens)
        if over is not None:
            raise await self._rejection(request, over[0], time.monotonic() + over[1])
        with self._traffic.waits(job.items):
            slot = await state.gate.enter()
        try:
            with self._traffic.works(job.items):
                return await self._served(request, job, slot)
        finally:
            slot.free()

    async def _served(self, request: Incoming, job: Job, slot: Slot) -> web.StreamResponse:
        """Wait for the service time and respond. The slot is released and the response counted before the client can read it."""
        state = self._state
        fault = state.draw()
        if fault in ("reset", "error_500", "error_503"):
            await self._fail(request, fault)
        if fault == "hang":
            state.counters.ended_in(fault)
            await forever()
        asked, pace = job.asked, Pace(time.monotonic(), state.spec.latency, state.timeline, job.length)
        slot.due = state.timeline.plan(pace.begin, job.service)[0]

        def finish(problem: str | None) -> None:
            if problem != "stall":
                slot.free()
            state.counters.ended_in(problem, job.tokens)

        if isinstance(asked, ChatRequest):
            content, used = self._write(request, asked, job.digest), responders.usage(job.prompt, job.completion)
        streams = isinstance(asked, ChatRequest) and asked.stream
        ready, error = state.timeline.plan(pace.begin, state.spec.latency.base if streams else job.service)
        await sleep_until(ready)
        if error is not None:
            await self._fail(request, error)
        headers, mishap = self._headers() | self._dialect.headers(job), FaultPlan(fault, state.point(), state.spec.faults.trickle_gap)
        if isinstance(asked, ListRequest):
            body = asked.made()
        elif isinstance(asked, EmbeddingsRequest):
            body = responders.embeddings(asked, job.prompt)
        elif streams:
            return await stream(request, headers, Chunks(asked, job.digest, content, used), pace, mishap, finish)
        else:
            body = responders.chat_completion(asked, job.digest, content, used)
        finish(mishap.problem)
        return await deliver(request, body, headers, mishap)

    def _write(self, request: Incoming, asked: ChatRequest, digest: bytes) -> str:
        try:
            return self._state.write(asked.messages, digest)
        except Exception as error:
            raise Problem(500, self._told(request, 500, f"the responder raised {error!r}", "server_error"), "responder") from error

    async def _check_phase(self, request: Incoming) -> None:
        phase = self._state.phase()
        if phase is not None and refuses(phase):
            await self._fail(request, phase.behaviour)

    async def _fail(self, request: Incoming, kind: str) -> NoReturn:
        """End a request with the error of a fault or a phase."""
        if kind in ("reset", "dead"):
            if not request.dropped:
                self._state.counters.ended_in(kind)
            await reset(request)
        status = 503 if kind == "error_503" else 500
        ready_at = self._state.timeline.opens(time.monotonic())
        raise Problem(status, self._told(request, status, _FAILURES[status], "server_error", status), kind, ready_at)

    def _check_key(self, request: Incoming) -> None:
        key = self._state.spec.api_key
        if key is not None and request.headers.get("Authorization") != f"Bearer {key.get_secret_value()}":
            told = self._told(request, 401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key")
            raise Problem(401, told, "unauthorized")

    async def _rejection(self, request: Incoming, rate: str | None, ready_at: float) -> Problem:
        """The error for a request that found no slot (``rate`` is None) or exceeded a rate limit."""
        spec = self._state.spec
        if spec.reject_delay:
            await sleep_until(time.monotonic() + spec.reject_delay)
        if rate is None:
            message, status = "Too many requests are being served; the server has no room.", spec.reject_status
            return Problem(status, self._told(request, status, message, "overloaded_error", "overloaded"), "rejected", ready_at)
        told = self._told(request, 429, f"Rate limit reached for {rate} per min.", rate, "rate_limit_exceeded")
        return Problem(429, told, "rejected", ready_at)

    async def _look_up(self, request: Incoming, path: str) -> web.StreamResponse:
        await self._check_phase(request)
        if request.method == "GET" and path in self._dialect.health:
            return web.Response(headers=self._headers())
        found = self._dialect.look_up(path, Look(self._state.spec, self._traffic, len(self.under_way)))
        if request.method != "GET" or found is None:
            told = self._told(request, 404, f"there is no {request.method} {path} here", "not_found")
            return self._refuse(Problem(404, told, "not_found"))
        self._check_key(request)
        return web.Response(text=found[1], content_type=found[0], headers=self._headers())

    def _told(self, request: Incoming, status: int, message: str, kind: str, code: str | int | None = None) -> bytes:
        return self._dialect.error(Told(request.path, status, message, kind, code))

    def _refuse(self, problem: Problem) -> web.Response:
        headers = self._headers()
        if problem.ready_at is not None:
            headers |= hint(self._state.spec.retry_after, max(0.0, problem.ready_at - time.monotonic()))
        return web.Response(status=problem.status, body=problem.body, content_type=JSON, headers=headers)

    def _headers(self) -> dict[str, str]:
        self._answers += 1
        headers = {"x-request-id": f"req-{self._answers}"}
        form = self._state.spec.rate_headers
        return headers | self._state.rates.headers("openai" if form is True else form) if form else headers
