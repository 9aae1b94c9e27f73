"""The server of a fake endpoint: its port, and the path of a request: admit or reject it, wait for its service time, and respond."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from aiohttp import web

from qreward.testing import openai_api
from qreward.testing.admission import Slot, refuses
from qreward.testing.decisions import DECISIONS
from qreward.testing.endpoint import FakeEndpointState
from qreward.testing.kinds import SERVER_KINDS, ErrorResponse, FakeServerKind, Job, Route, RouteCall, ServerState
from qreward.testing.responses import FAULTS, JSON, NO_FAULT, FaultPlan, Incoming, abort, deliver, end, forever, hint, sleep_until, stream
from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import canonical, count_tokens, encode

HOST = "127.0.0.1"
_BACKLOG = 4096
_MOST_BODY = 256 * 1024 * 1024
_TURNS_TO_SETTLE = 3  # iterations of the event loop that cancelled handlers need to end


class Listener:
    """Accepts connections on a port. A listener can be closed and reopened on the same port. A closed listener refuses connections."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], port: int) -> None:
        self._make_protocol = make_protocol
        self._reserved = _bound(port)
        self.port: int = self._reserved.getsockname()[1]
        self._socket: socket.socket | None = None
        self._connecting: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        if self._socket is None:
            self._socket = _bound(self.port)
            self._socket.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)

    def shut(self) -> None:
        """Refuse new connections. Established connections stay open."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def aclose(self) -> None:
        self.shut()
        self._reserved.close()
        await asyncio.gather(*self._connecting)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BACKLOG):
            try:
                connection = listening.accept()[0]
            except OSError:  # no connection is left to accept
                return
            connection.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._connect(connection, listening))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket, listening: socket.socket) -> None:
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(self._make_protocol, connection)
        except OSError:  # the client has disconnected
            connection.close()
            return
        if listening is not self._socket:  # shut() was called in the meantime
            abort(transport)


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setblocking(False)
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made


class FakeServer:
    state_class: ClassVar[type[FakeEndpointState]] = FakeEndpointState

    def __init__(self, spec: FakeEndpoint) -> None:
        self.state = self.state_class(spec)
        self.under_way: set[Incoming] = set()
        self._answers = 0
        self._running = self._waiting = 0  # items
        self._web = web.Server(
            self,  # type: ignore[arg-type] # the requests come from request_factory
            request_factory=_make_request,
            handler_cancellation=True,
            access_log=None,
            lingering_time=0,
        )
        self._listener = Listener(self._web, spec.port)
        self.port = self._listener.port
        self._timer: asyncio.TimerHandle | None = None
        self.state.phases_changed = self._follow_phases
        self._follow_phases()

    @property
    def kind(self) -> FakeServerKind:
        return SERVER_KINDS[self.state.spec.kind]

    # the port

    async def aclose(self) -> None:
        """Stop listening, abort every connection, and wait until no task is left."""
        self.state.phases_changed = lambda: None  # a request that arrives now must not open the port again
        if self._timer is not None:
            self._timer.cancel()
        await self._listener.aclose()
        settle = _TURNS_TO_SETTLE
        while settle or self._web.connections:
            self._drop_connections()
            await asyncio.sleep(0)
            settle = max(0, settle - 1)

    def _follow_phases(self) -> None:
        """Open or close the port according to the active phase. Schedule the next call of this method for the next change of phase."""
        phase = self.state.phase()
        if phase is not None and phase.behaviour == "dead":
            self._listener.shut()
            for request in self.under_way:
                if not request.dropped:
                    self.state.ended_in("dead")
            self._drop_connections()
        else:
            self._listener.open()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        change = self.state.timeline.next_change(now)
        if change < math.inf:
            self._timer = asyncio.get_running_loop().call_later(change - now, self._follow_phases)

    def _drop_connections(self) -> None:
        for request in self.under_way:
            request.dropped = True
        for connection in self._web.connections:
            abort(connection.transport)

    # a request

    async def __call__(self, request: Incoming) -> web.StreamResponse:
        try:
            return await self.respond(request)
        except ErrorResponse as error:
            headers = self._headers()
            if error.ready_at is not None:
                headers |= hint(self.state.spec.retry_after, max(0.0, error.ready_at - time.monotonic()))
            if error.status == 405:
                headers["Allow"] = "POST"
            body = error.body or self.kind.error(request.path, error)
            return web.Response(status=error.status, body=body, content_type=JSON, headers=headers)

    async def respond(self, request: Incoming) -> web.StreamResponse:
        """Respond to a request, or raise ``ErrorResponse``."""
        route = self.kind.routes.get(request.path) or (DECISIONS.get(request.path) if self.state.spec.decisions else None)
        if request.method != "POST":
            route = None
        return await (self._status(request) if route is None else self._counted(request, route))

    async def _counted(self, request: Incoming, route: Route) -> web.StreamResponse:
        state = self.state
        self.under_way.add(request)
        try:
            state.arrived()
            self._check_key(request)
            return await self._admitted(request, route(RouteCall(self.kind, request.path, await request.read(), state.spec)))
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
        state, spec = self.state, self.state.spec
        state.recognise(job.digest)
        if job.model is not None and not state.serves(job.model):
            message = self.kind.unknown.format(model=job.model, served=", ".join(spec.models))
            raise ErrorResponse(404, message, "unknown_model", code="model_not_found")
        await self._check_phase(request)
        if state.admission.full and spec.over_cap == "reject":
            text = "Too many requests are being served; the server is full."
            message, type_ = self.kind.full.get(spec.reject_status, (text, "overloaded_error"))
            raise ErrorResponse(spec.reject_status, message, "rejected", type_, "overloaded", state.admission.next_free())
        if (over := state.rates.admit(job.tokens)) is not None:
            rate, ready_at = over[0], time.monotonic() + over[1]
            raise ErrorResponse(429, f"Rate limit reached for {rate} per min.", "rejected", rate, "rate_limit_exceeded", ready_at)
        self._waiting += job.items
        try:
            slot = await state.admission.enter()
        finally:
            self._waiting -= job.items
        self._running += job.items
        try:
            return await self._served(request, job, slot)
        finally:
            self._running -= job.items
            slot.free()

    async def _served(self, request: Incoming, job: Job, slot: Slot) -> web.StreamResponse:
        state, chat, latency = self.state, job.chat, self.state.spec.latency
        plan = await self.fault_plan(request)
        cached = await self._computed(job)
        begin = time.monotonic()
        slot.due = state.timeline.plan(begin, job.service)[0]

        def finish(problem: str | None) -> None:
            if FAULTS.get(problem or "", NO_FAULT).then != "wait":
                slot.free()
            state.ended_in(problem, job.tokens)

        content = ""
        if chat is not None:
            try:
                content = state.write(chat.messages, job.digest)
            except Exception as error:
                raise ErrorResponse(500, f"the responder raised {error!r}", "responder", "server_error") from error
        used = openai_api.usage(job.prompt, job.completion, cached)
        streams = chat is not None and bool(chat.stream)
        ready, failure = state.timeline.plan(begin, latency.base if streams else job.service)
        await sleep_until(ready)
        if failure is not None:
            await self._fail(request, failure)
        if chat is not None and streams:
            chunks = self.kind.chunks(chat, job.digest, content, used)

            def due(tokens: int) -> tuple[float, str | None]:
                return state.timeline.plan(begin, latency.seconds(tokens))

            return await stream(request, self._headers(), chunks, job.length, due, plan, finish)
        body = job.body(cached) if chat is None else encode(self.kind.completion(chat, job.digest, content, used))
        finish(plan.problem)
        return await deliver(request, body, self._headers(), plan)

    async def fault_plan(self, request: Incoming) -> FaultPlan:
        """Draw the fault of a response. Respond with it if it occurs at once."""
        name = self.state.draw()
        if name is not None and FAULTS[name].at_once:
            await self._fail(request, name)
        return FaultPlan(name, self.state.point(), self.state.spec.faults.trickle_gap)

    async def _computed(self, job: Job) -> int | None:
        """Compute the prompts. Return the number of cached prompt tokens; None without a prefix cache."""
        cache, chat = self.state.cache, job.chat
        if cache is None or (chat is None and not job.prompts):
            return None
        prompts = [(canonical(chat.messages), job.prompt)] if chat is not None else [(text, count_tokens(text)) for text in job.prompts]
        try:
            served = (cache.serve(job.model or "", text, tokens, job.length or 1) for text, tokens in prompts)
            return sum(await asyncio.gather(*served))
        except ValueError as error:
            raise ErrorResponse(400, str(error), "bad_request", code="context_length_exceeded") from None

    async def _check_phase(self, request: Incoming) -> None:
        phase = self.state.phase()
        if phase is not None and refuses(phase):
            await self._fail(request, phase.behaviour)

    async def _fail(self, request: Incoming, kind: str) -> NoReturn:
        fault = FAULTS["reset" if kind == "dead" else kind]
        if fault.then != "answer":
            if not request.dropped:
                self.state.ended_in(kind)
            await end(request, fault)
        message, type_ = self.kind.failures[fault.status]
        raise ErrorResponse(fault.status, message, kind, type_, fault.status, self.state.timeline.opens(time.monotonic()))

    def _check_key(self, request: Incoming) -> None:
        key = self.state.spec.api_key
        if (
            key is not None
            and request.path.startswith(self.kind.guarded)
            and request.headers.get("Authorization") != f"Bearer {key.get_secret_value()}"
        ):
            raise ErrorResponse(401, "Incorrect API key provided.", "unauthorized", code="invalid_api_key")

    async def _status(self, request: Incoming) -> web.StreamResponse:
        await self._check_phase(request)
        path, kind = request.path, self.kind
        if request.method == "GET" and path in kind.health:
            return web.Response(headers=self._headers())
        if request.method != "GET" or path not in kind.status:
            if path.startswith(kind.guarded) and kind.guarded != ("/",):
                self._check_key(request)
            status = kind.wrong_method if path in kind.routes else 404
            raise ErrorResponse(status, f"there is no {request.method} {path} here", "not_found", "not_found")
        self._check_key(request)
        content_type, text = kind.status[path]
        body = text(ServerState(self.state.spec, self._running, self._waiting, len(self.under_way), self.state.cache))
        return web.Response(text=body, content_type=content_type, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        self._answers += 1
        headers = {"x-request-id": f"req-{self._answers}"} if self.kind.request_ids else {}
        return headers | self.state.rates.headers() if self.state.spec.rate_headers else headers


def _make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Incoming:
    return Incoming(message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=_MOST_BODY)
