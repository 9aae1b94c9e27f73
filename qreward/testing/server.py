"""The server of a fake endpoint: its port, the path of a request (admit or reject it, wait for its service time, respond), and faults."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, NoReturn

from aiohttp import web

from qreward.testing.bodies import Chunks, count_tokens, encode, error
from qreward.testing.endpoint import PromptCache, Rates, RequestAdmission, Seen, Timeline, refuses
from qreward.testing.kinds import SERVER_KINDS, ErrorResponse, FakeServerKind, Job, RouteCall, decisions_route
from qreward.testing.responders import Write, writer_of
from qreward.testing.spec import FakeEndpoint, Phase

HOST = "127.0.0.1"
DEAD = Phase(behaviour="dead")
JSON, PLAIN = "application/json", "text/plain"
_BACKLOG = 4096
_MOST_BODY = 256 * 1024 * 1024
_TURNS_TO_SETTLE = 3  # iterations of the event loop that cancelled handlers need to end
_LINGER_ZERO = struct.pack("ii", 1, 0)  # value of the socket option with which a close sends a reset
_MOST_AT_ONCE = 1 << 16  # bytes after which a write begins, so that a slow client exerts backpressure
_BLANKS = b" \r\n\t\n" * 200
_MALFORMED = b"<html><body><h1>Service page</h1></body></html>"
_UPSTREAM_FAILED = error("Provider returned error", "upstream_error", 502)
FAILURES = {500: "The server had an error while processing the request.", 503: "The server is not ready."}
_TRICKLE_BYTES = 16
_NOISE = (b": keep-alive\n\n", b"\n", b"no field of any kind\n", b"x-unknown: 1\r\n", b"id: 7\r\n\r\n", b"retry: 1000\r", b":\r\r")


Due = Callable[[int], tuple[float, str | None]]  # a function that returns when a token is due, or when and how the stream fails before
Finish = Callable[[str | None], None]


class Fault(NamedTuple):
    """Describes the behaviour of the server in a fault. A fault occurs at once, or while the server sends the body of the response.

    ``name``, ``point`` and ``gap`` belong to one response: the fault, the share of the body that is sent, and the seconds between pieces.
    """

    at_once: bool = False
    status: int = 200
    then: Literal["answer", "reset", "hang_up", "wait"] = "answer"
    body: bytes | None = None
    content_type: str = JSON
    pieces: int = 0
    tail: bytes | None = None  # what replaces the end of a stream; if it is empty, the body of another response is cut off too
    noise: tuple[bytes, ...] = ()
    fails: bool = True
    name: str | None = None
    point: float = 1.0
    gap: float = 0.0


NO_FAULT = Fault(fails=False)
FAULTS: Mapping[str, Fault] = {
    "reset": Fault(at_once=True, then="reset"),
    "error_500": Fault(at_once=True, status=500),
    "error_503": Fault(at_once=True, status=503),
    "hang": Fault(at_once=True, then="wait"),
    "truncated": Fault(tail=b""),
    "error_in_200": Fault(body=_UPSTREAM_FAILED, tail=b"data: " + _UPSTREAM_FAILED + b"\n\n"),
    "cut": Fault(then="hang_up", tail=b""),
    "malformed": Fault(body=_MALFORMED, content_type="text/html", tail=b'data: {"id": "chatcmpl-\n\n'),
    "stall": Fault(then="wait", tail=b""),
    "slow_trickle": Fault(pieces=_TRICKLE_BYTES, fails=False),
    "noise": Fault(noise=_NOISE, fails=False),
}


class Incoming(web.BaseRequest):
    """Represents a request to a fake endpoint. ``dropped`` is True if the endpoint, and not the client, closes the connection."""

    dropped = False
    __hash__ = object.__hash__  # the base class is a mapping and has no hash; requests are compared by identity


async def deliver(request: Incoming, body: bytes, headers: dict[str, str], fault: Fault) -> web.StreamResponse:
    """Send a response with status 200, altered by the fault."""
    sent = (
        body[: int(len(body) * fault.point)]
        if fault.tail == b""
        else (_BLANKS if fault.noise else b"") + (body if fault.body is None else fault.body)
    )
    if fault.then == "answer" and not fault.pieces:
        return web.Response(body=sent, content_type=fault.content_type, headers=headers)
    response = web.StreamResponse(headers={**headers, "Content-Type": fault.content_type, "Content-Length": str(len(body))})
    await response.prepare(request)
    step = fault.pieces or max(1, len(sent))
    for start in range(0, len(sent), step):
        await response.write(sent[start : start + step])
        await asyncio.sleep(fault.gap if fault.pieces else 0)
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
    """Serves one endpoint on a port, and holds its settings, slots, rate limits, phases, random draws and counters."""

    def __init__(self, spec: FakeEndpoint) -> None:
        self.spec = spec
        self.write = self.new_writer(spec)
        self.admission = RequestAdmission(spec.max_concurrency)
        self.running = self.waiting = 0  # items
        self.killed = self._closed = False
        self.under_way: set[Incoming] = set()
        self._answers = 0
        self._web = web.Server(
            self,  # type: ignore[arg-type] # the requests come from request_factory
            request_factory=lambda *parts: Incoming(*parts, loop=asyncio.get_running_loop(), client_max_size=_MOST_BODY),  # type: ignore[misc]
            handler_cancellation=True,
            access_log=None,
            lingering_time=0,
        )
        self._reserved = _bound(spec.port)  # keeps the port while the endpoint is dead
        self.port: int = self._reserved.getsockname()[1]
        self._listening: socket.socket | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.reset()

    @property
    def kind(self) -> FakeServerKind:
        return SERVER_KINDS[self.spec.kind]

    def reset(self) -> None:
        """Reset statistics, rate limits, phases and random draws. Slots in use stay in use, and a killed endpoint stays killed."""
        self.epoch = time.monotonic()
        self.counts: Counter[str] = Counter()  # the counts in Seen
        self.errors: Counter[str] = Counter()
        self.digests: set[bytes] = set()
        self.admission.peak = self.admission.in_flight
        self.rates = Rates(self.spec)
        self.timeline = Timeline(self.spec.phases, self.epoch)
        self._seed_faults()
        self.cache = self.new_cache()
        self._follow_phases()

    def configure(self, spec: FakeEndpoint) -> None:
        """Change the settings. State that does not depend on a changed setting is kept."""
        self.write = self.new_writer(spec)
        before, self.spec = self.spec, spec
        self.admission.limit = spec.max_concurrency
        self.admission.hand_over()
        if any(getattr(before, name) != getattr(spec, name) for name in ("rpm", "tpm", "burst")):
            self.rates = Rates(spec)
        if before.phases != spec.phases:
            self.timeline = Timeline(spec.phases, self.epoch)
        if before.faults != spec.faults:
            self._seed_faults()
        if before.prefix_cache != spec.prefix_cache:
            self.cache = self.new_cache()  # requests in flight stay with the previous one
        self._follow_phases()

    def kill(self, killed: bool = True) -> None:
        """Make the endpoint dead until ``kill(False)`` revives it. Both calls empty the prefix cache."""
        self.killed = killed
        self.cache = self.new_cache()
        self._follow_phases()

    def ended_in(self, problem: str | None, tokens: int = 0) -> None:
        """Count the end of a request: None for a successful response, ``rejected``, or the kind of error."""
        if problem is None:
            self.counts["answered"] += 1
            self.counts["tokens"] += tokens
        elif problem == "rejected":
            self.counts["rejected"] += 1
        else:
            self.errors[problem] += 1

    def draw(self) -> str | None:
        """Draw the fault of the next attempt; None for no fault."""
        return self._random.choices(*self._faults)[0]

    def phase(self) -> Phase | None:
        return DEAD if self.killed else self.timeline.at(time.monotonic())

    @property
    def load(self) -> tuple[float, float, float]:
        """The running items, the waiting items, and the used share (0 to 1) of the cache, as status routes report them."""
        return self.cache.load if self.cache is not None else (float(self.running), float(self.waiting), 0.25)

    def serves(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.spec.models)

    def seen(self) -> Seen:
        counts = dict(self.counts)
        if self.cache is not None:
            counts |= {"computed": self.cache.computed, "cached": self.cache.hits}
        in_flight, peak = self.admission.in_flight, self.admission.peak
        return Seen(self.spec.name, errors=dict(self.errors), in_flight=in_flight, peak_in_flight=peak, **counts)

    def new_writer(self, spec: FakeEndpoint) -> Write:
        """Return the function that writes the responses to chats. Raises ``ConfigError`` if the responder cannot be imported."""
        return writer_of(spec.responder)

    def new_cache(self) -> PromptCache | None:
        return None if self.spec.prefix_cache is None else PromptCache(self.spec.prefix_cache)

    def _seed_faults(self) -> None:
        rates = self.spec.faults.rates()
        self._faults = [*rates, None], [*rates.values(), max(0.0, 1 - sum(rates.values()))]
        seed = f"{self.spec.faults.seed}/{self.spec.name}"
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.points = random.Random(f"{seed}/points")  # noqa: S311 - separate, so that draws of points do not change the drawn faults

    # the port

    async def aclose(self) -> None:
        """Stop listening, abort every connection, and wait until no task is left."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._shut()
        self._reserved.close()
        await asyncio.gather(*self._connecting)
        settle = _TURNS_TO_SETTLE
        while settle or self._web.connections:
            self._drop_connections()
            await asyncio.sleep(0)
            settle = max(0, settle - 1)

    def _follow_phases(self) -> None:
        """Open or close the port according to the active phase. Schedule the next call of this method for the next change of phase."""
        if self._closed:
            return
        phase = self.phase()
        if phase is not None and phase.behaviour == "dead":
            self._shut()
            for request in self.under_way:
                if not request.dropped:
                    self.ended_in("dead")
            self._drop_connections()
        elif self._listening is None:
            self._listening = _bound(self.port)
            self._listening.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        change = self.timeline.next_change(now)
        if change < math.inf:
            self._timer = asyncio.get_running_loop().call_later(change - now, self._follow_phases)

    def _shut(self) -> None:
        """Refuse new connections. Established connections stay open."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

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
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(self._web, connection)
        except OSError:  # the client has disconnected
            connection.close()
            return
        if listening is not self._listening:  # the port was shut in the meantime
            abort(transport)

    def _drop_connections(self) -> None:
        for request in self.under_way:
            request.dropped = True
        for connection in self._web.connections:
            abort(connection.transport)

    async def __call__(self, request: Incoming) -> web.StreamResponse:
        try:
            return await self.respond(request)
        except ErrorResponse as error:
            headers = self._headers()
            if error.ready_at is not None:
                headers |= hint(self.spec.retry_after, max(0.0, error.ready_at - time.monotonic()))
            body = error.body or self.kind.error(request.path, error)
            return web.Response(status=error.status, body=body, content_type=JSON, headers=headers)

    async def respond(self, request: Incoming) -> web.StreamResponse:
        decides = self.spec.decisions and request.path == "/v1/decisions"
        route = self.kind.routes.get(request.path) or (decisions_route if decides else None)
        if route is None or request.method != "POST":
            return await self._status(request)
        self.under_way.add(request)
        try:
            self.counts["requests"] += 1
            self._check_key(request)
            return await self._admitted(request, route(RouteCall(self.kind, request.path, await request.read(), self.spec, self.write)))
        except ErrorResponse as error:
            self.ended_in(error.counted)
            raise
        except (asyncio.CancelledError, ConnectionError) as error:
            if not request.dropped:
                self.counts["disconnects"] += 1
            if isinstance(error, ConnectionError):  # raised by a write: the client has disconnected, and a cancellation follows
                await forever()
            raise
        finally:
            self.under_way.discard(request)

    async def _admitted(self, request: Incoming, job: Job) -> web.StreamResponse:
        """Check a request and serve it. The checks are, in this order: model, phase, free slot, rate limits."""
        spec = self.spec
        self.counts["duplicates"] += job.digest in self.digests
        self.digests.add(job.digest)
        if job.model is not None and not self.serves(job.model):
            message = self.kind.unknown.format(model=job.model, served=", ".join(spec.models))
            raise ErrorResponse(404, message, "unknown_model", code="model_not_found")
        await self._check_phase(request)
        if self.admission.full and spec.over_cap == "reject":
            message, free = "Too many requests are being served; the server is full.", min(self.admission.slots.values())
            raise ErrorResponse(spec.reject_status, message, "rejected", "overloaded_error", "overloaded", free)
        if (over := self.rates.admit(job.tokens)) is not None:
            rate, ready_at = over[0], time.monotonic() + over[1]
            raise ErrorResponse(429, f"Rate limit reached for {rate} per min.", "rejected", rate, "rate_limit_exceeded", ready_at)
        self.waiting += job.items
        try:
            slot = await self.admission.enter()
        finally:
            self.waiting -= job.items
        self.running += job.items

        def finish(problem: str | None) -> None:
            if FAULTS.get(problem or "", NO_FAULT).then != "wait":
                self.admission.leave(slot)
            self.ended_in(problem, job.tokens)

        try:
            fault = await self.drawn_fault(request)
            cached = await self._computed(job)
            begin, latency = time.monotonic(), self.spec.latency
            self.admission.slots[slot] = self.timeline.plan(begin, job.service)[0]
            body, chunks = (job.body(cached), None) if job.chunks is None else (b"", job.chunks(cached))
            ready, failure = self.timeline.plan(begin, job.service if chunks is None else latency.base)
            await sleep_until(ready)
            if failure is not None:
                await self._fail(request, failure)
            if chunks is not None:
                due = lambda tokens: self.timeline.plan(begin, latency.seconds(tokens))  # noqa: E731
                return await self._stream(request, job, chunks, due, fault, finish)
            finish(fault.name if fault.fails else None)
            return await deliver(request, body, self._headers(), fault)
        finally:
            self.running -= job.items
            self.admission.leave(slot)

    async def _stream(self, request: Incoming, job: Job, chunks: Chunks, due: Due, fault: Fault, finish: Finish) -> web.StreamResponse:
        """Stream a response: send each event when its token is ``due``. Events that are due together are sent in one write."""
        response = web.StreamResponse(
            headers={**self._headers(), "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        ready = bytearray()

        async def write() -> None:
            if not response.prepared:
                await response.prepare(request)
            if ready:
                await response.write(bytes(ready))
            ready.clear()

        for number in range((job.length if fault.tail is None else int(job.length * fault.point)) + 1):
            when, failure = due(number)
            if fault.pieces:
                when += fault.gap * (number + 1)
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
            ready += chunks.piece(number - 1, job.length) if number else chunks.first()
        finish(fault.name if fault.fails else None)
        ready += chunks.last() if fault.tail is None else fault.tail
        await write()
        await end(request, fault)
        return response

    async def drawn_fault(self, request: Incoming) -> Fault:
        """Draw the fault of a response. Respond with it if it occurs at once."""
        name, faults = self.draw(), self.spec.faults
        if name is None:
            return NO_FAULT
        if FAULTS[name].at_once:
            await self._fail(request, name)
        return FAULTS[name]._replace(
            name=name, point=self.points.random() if faults.point is None else faults.point, gap=faults.trickle_gap
        )

    async def _computed(self, job: Job) -> int | None:
        """Compute the prompts. Return the number of cached prompt tokens; None without a prefix cache."""
        if self.cache is None or not job.prompts:
            return None
        served = [self.cache.serve(job.model or "", text, count_tokens(text), job.length or 1) for text in job.prompts]
        return sum(await asyncio.gather(*served))

    async def _check_phase(self, request: Incoming) -> None:
        phase = self.phase()
        if phase is not None and refuses(phase):
            await self._fail(request, phase.behaviour)

    async def _fail(self, request: Incoming, kind: str) -> NoReturn:
        fault = FAULTS["reset" if kind == "dead" else kind]
        if fault.then != "answer":
            if not request.dropped:
                self.ended_in(kind)
            await end(request, fault)
        message = FAILURES[fault.status]
        raise ErrorResponse(fault.status, message, kind, "server_error", fault.status, self.timeline.opens(time.monotonic()))

    def _check_key(self, request: Incoming) -> None:
        key = self.spec.api_key
        if key is not None and request.headers.get("Authorization") != f"Bearer {key.get_secret_value()}":
            raise ErrorResponse(401, "Incorrect API key provided.", "unauthorized", code="invalid_api_key")

    async def _status(self, request: Incoming) -> web.StreamResponse:
        await self._check_phase(request)
        path, kind = request.path, self.kind
        if request.method == "GET" and path in kind.health:
            return web.Response(headers=self._headers())
        if request.method != "GET" or path not in kind.status:
            raise ErrorResponse(404, f"there is no {request.method} {path} here", "not_found", "not_found")
        self._check_key(request)
        told = kind.status[path](self)
        text, content_type = (told, PLAIN) if isinstance(told, str) else (encode(told).decode(), JSON)
        return web.Response(text=text, content_type=content_type, headers=self._headers())

    def _headers(self) -> dict[str, str]:
        self._answers += 1
        headers = {"x-request-id": f"req-{self._answers}"}
        return headers | self.rates.headers() if self.spec.rate_headers else headers
