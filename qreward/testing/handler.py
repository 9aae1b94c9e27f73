"""Request handling of a fake endpoint: admit or reject a request, wait for its service time, and respond, possibly with a fault."""

from __future__ import annotations

import asyncio
import time
from typing import NoReturn

from aiohttp import web

from qreward.testing import openai_api
from qreward.testing.admission import Slot
from qreward.testing.decisions import DECISIONS
from qreward.testing.endpoint import EndpointService, FakeEndpointState
from qreward.testing.faults import FAULTS, NO_FAULT
from qreward.testing.phases import refuses
from qreward.testing.responses import JSON, FaultPlan, Incoming, Pace, deliver, end, forever, hint, sleep_until, stream
from qreward.testing.server_kinds import SERVER_KINDS
from qreward.testing.server_routes import ErrorResponse, FakeServerKind, Job, Route, RouteCall, ServerState, Traffic
from qreward.testing.text import BYTES_PER_TOKEN, canonical, count_tokens, encode


class Handler:
    """Serves the requests of one endpoint."""

    def __init__(self, state: FakeEndpointState) -> None:
        self._state = state
        self.under_way: set[Incoming] = set()
        self._answers = 0
        self._traffic = Traffic()

    @property
    def _kind(self) -> FakeServerKind:
        kind: FakeServerKind = self._state.spec.server(SERVER_KINDS)
        return kind

    async def __call__(self, request: Incoming) -> web.StreamResponse:
        spec = self._state.spec
        route = {**self._kind.routes, **(DECISIONS if spec.decisions else {}), **spec.routes}.get(request.path)
        try:
            if self._state.service is not None and self._state.service.takes_path(request.path):
                return await self._by_service(request, self._state.service)
            if route is not None and request.method == "POST":
                return await self._counted(request, route)
            return await self._status(request)
        except ErrorResponse as error:
            headers = self._headers()
            if error.ready_at is not None:
                headers |= hint(self._state.spec.retry_after, max(0.0, error.ready_at - time.monotonic()))
            if error.status == 405:
                headers["Allow"] = "POST"
            body = error.body or self._kind.error(request.path, error)
            return web.Response(status=error.status, body=body, content_type=JSON, headers=headers)

    async def _by_service(self, request: Incoming, service: EndpointService) -> web.StreamResponse:
        """A fault that alters the body occurs after the call has taken effect."""
        if request.method == "POST":
            self._state.arrived()
        self._check_key(request)
        await self._check_phase(request)
        name = self._state.draw()
        if name is not None and FAULTS[name].at_once:
            await self._fail(request, name)
        body = service.respond(
            request.method, request.path, request.query, request.headers.get("Content-Type", ""), await request.read(), time.monotonic()
        )
        if body is None:
            raise ErrorResponse(404, f"there is no {request.method} {request.path} here", "not_found", "not_found")
        return await deliver(request, body, self._headers(), FaultPlan(name, self._state.point(), self._state.spec.faults.trickle_gap))

    async def _counted(self, request: Incoming, route: Route) -> web.StreamResponse:
        state = self._state
        self.under_way.add(request)
        try:
            state.arrived()
            self._check_key(request)
            return await self._admitted(request, route(RouteCall(self._kind, request.path, await request.read(), state.spec)))
        except ErrorResponse as error:
            state.ended_in(error.counted)
            raise
        except (asyncio.CancelledError, ConnectionError) as error:
            if not request.dropped:
                state.counts["disconnects"] += 1
            if isinstance(error, ConnectionError):  # raised by a write: the client has disconnected, and a cancellation follows
                await forever()
            raise
        finally:
            self.under_way.discard(request)

    async def _admitted(self, request: Incoming, job: Job) -> web.StreamResponse:
        """Check a request and serve it. The checks are, in this order: model, phase, free slot, rate limits."""
        state = self._state
        state.recognise(job.digest)
        if job.model is not None and not state.serves(job.model):
            message = self._kind.unknown.format(model=job.model, served=", ".join(state.spec.models))
            raise ErrorResponse(404, message, "unknown_model", code="model_not_found")
        await self._check_phase(request)
        if state.admission.full and state.spec.over_cap == "reject":
            raise self._rejection(None, state.admission.next_free())
        over = state.rates.admit(job.tokens)
        if over is not None:
            raise self._rejection(over[0], time.monotonic() + over[1])
        with self._traffic.count("waiting", job.items):
            slot = await state.admission.enter()
        try:
            with self._traffic.count("running", job.items):
                return await self._served(request, job, slot)
        finally:
            slot.free()

    async def _served(self, request: Incoming, job: Job, slot: Slot) -> web.StreamResponse:
        """Wait for the service time and respond."""
        state, chat = self._state, job.chat
        name = state.draw()
        if name is not None and FAULTS[name].at_once:
            await self._fail(request, name)
        cached = await self._computed(job)
        pace = Pace(time.monotonic(), state.spec.latency, state.timeline, job.length)
        slot.due = state.timeline.plan(pace.begin, job.service)[0]

        def finish(problem: str | None) -> None:
            if FAULTS.get(problem or "", NO_FAULT).then != "wait":
                slot.free()
            state.ended_in(problem, job.tokens)

        content, finished = self._content(job), "stop"
        if job.most is not None and len(content) > BYTES_PER_TOKEN * job.most:
            content, finished = content[: BYTES_PER_TOKEN * job.most], "length"
        used = openai_api.usage(job.prompt, job.completion, cached)
        streams = chat is not None and bool(chat.stream)
        ready, error = state.timeline.plan(pace.begin, state.spec.latency.base if streams else job.service)
        await sleep_until(ready)
        if error is not None:
            await self._fail(request, error)
        headers, plan = self._headers(), FaultPlan(name, state.point(), state.spec.faults.trickle_gap)
        if chat is None:
            body = job.body(cached)
        elif streams:
            return await stream(request, headers, self._kind.chunks(chat, job.digest, content, used, finished), pace, plan, finish)
        else:
            body = encode(self._kind.completion(chat, job.digest, content, used, job.label, finished))
        finish(plan.problem)
        return await deliver(request, body, headers, plan)

    async def _computed(self, job: Job) -> int | None:
        """Compute the prompts. Return the number of cached prompt tokens; None without a prefix cache."""
        cache, chat = self._state.cache, job.chat
        if cache is None or (chat is None and not job.prompts):
            return None
        prompts = [(canonical(chat.messages), job.prompt)] if chat is not None else [(text, count_tokens(text)) for text in job.prompts]
        try:
            served = (cache.serve(job.model or "", text, tokens, job.length or 1) for text, tokens in prompts)
            return sum(await asyncio.gather(*served))
        except ValueError as error:
            raise ErrorResponse(400, str(error), "bad_request", code="context_length_exceeded") from None

    def _content(self, job: Job) -> str:
        try:
            if job.label is not None:
                return job.label.content
            return self._state.write(job.chat.messages, job.digest) if job.chat is not None else ""
        except Exception as error:
            raise ErrorResponse(500, f"the responder raised {error!r}", "responder", "server_error") from error

    async def _check_phase(self, request: Incoming) -> None:
        phase = self._state.phase()
        if phase is not None and refuses(phase):
            await self._fail(request, phase.behaviour)

    async def _fail(self, request: Incoming, kind: str) -> NoReturn:
        fault = FAULTS["reset" if kind == "dead" else kind]
        if fault.then != "answer":
            if not request.dropped:
                self._state.ended_in(kind)
            await end(request, fault)
        ready_at = self._state.timeline.opens(time.monotonic())
        message, type_ = self._kind.failures[fault.status]
        raise ErrorResponse(fault.status, message, kind, type_, fault.status, ready_at)

    def _check_key(self, request: Incoming) -> None:
        key = self._state.spec.api_key
        if (
            key is not None
            and request.path.startswith(self._kind.guarded)
            and request.headers.get("Authorization") != f"Bearer {key.get_secret_value()}"
        ):
            raise ErrorResponse(401, "Incorrect API key provided.", "unauthorized", code="invalid_api_key")

    def _rejection(self, rate: str | None, ready_at: float) -> ErrorResponse:
        """Return the error for a request that found no slot (``rate`` is None) or exceeded a rate limit."""
        spec = self._state.spec
        if rate is None:
            message, type_ = self._kind.full.get(
                spec.reject_status, ("Too many requests are being served; the server is full.", "overloaded_error")
            )
            return ErrorResponse(spec.reject_status, message, "rejected", type_, "overloaded", ready_at)
        return ErrorResponse(429, f"Rate limit reached for {rate} per min.", "rejected", rate, "rate_limit_exceeded", ready_at)

    async def _status(self, request: Incoming) -> web.StreamResponse:
        await self._check_phase(request)
        path, state = request.path, self._state
        if request.method == "GET" and path in self._kind.health:
            return web.Response(headers=self._headers())
        if request.method != "GET" or path not in self._kind.status:
            if path.startswith(self._kind.guarded) and self._kind.guarded != ("/",):
                self._check_key(request)
            status = self._kind.wrong_method if path in self._kind.routes else 404
            raise ErrorResponse(status, f"there is no {request.method} {path} here", "not_found", "not_found")
        self._check_key(request)
        content_type, text = self._kind.status[path]
        return web.Response(
            text=text(ServerState(state.spec, self._traffic, len(self.under_way), state.cache)),
            content_type=content_type,
            headers=self._headers(),
        )

    def _headers(self) -> dict[str, str]:
        self._answers += 1
        headers = {"x-request-id": f"req-{self._answers}"} if self._kind.request_ids else {}
        return headers | self._state.rates.headers() if self._state.spec.rate_headers else headers
