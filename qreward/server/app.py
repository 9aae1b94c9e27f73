"""The reward server: an ASGI app with routes, token, admission, scoring, metrics and shutdown, and its run by uvicorn. ``bodies`` reads and
writes the bodies."""

from __future__ import annotations

import asyncio
import hmac
import signal
import socket
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple, Self

from qreward.batching import BatchRecord
from qreward.batching.reward_buffer import RewardBuffer, ScoreResult
from qreward.errors import BadRequest, ClientClosed, ConfigError, QueueFull
from qreward.scheduler.limits.rate import Gcra
from qreward.server import bodies
from qreward.server.bodies import HTTPError, ScoreRequest, answer, busy, draining, invalid, too_large, write
from qreward.server.config import ServerConfig, is_loopback

Receive = Callable[[], Awaitable[Any]]
OPEN = ("/health", "/liveness")
"""Paths that need no token, because health probes send no token."""
ALWAYS = (*OPEN, "/metrics")
"""Paths that are served while the server drains, that is, while it finishes the last requests before it stops."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SCORING: dict[str, Callable[[bytes, ServerConfig], ScoreRequest]] = {
    "/get_reward": bodies.read_get_reward,
    "/classify": bodies.read_classify,
    "/score": bodies.read_score,
    "/v1/score": bodies.read_score,
}
"""Path of POST requests -> function that parses the body."""
STATUS = (*ALWAYS, "/v1/models")
"""Paths of GET requests."""


class ClientDisconnected(Exception):
    """The caller has closed the connection."""


class HTTPResponse(NamedTuple):
    """A response. ``content_type`` is that of the body."""

    status: int
    body: bytes
    content_type: str = HTTPError.content_type
    headers: Mapping[str, str] = {}


def create_app(scorer: Any, config: ServerConfig | None = None, **settings: Any) -> RewardApp:
    """Create an ASGI app that scores with a function, in batches, through the APIs of OpenRLHF, MolGenDocking and vLLM.

    ``scorer(completions: list[str], metadata: list[dict]) -> rewards`` is as for ``RewardBuffer``. ``settings`` are keyword arguments, in
    place of ``config``; see :class:`ServerConfig`.

    Raises:
        ConfigError: a setting is invalid, or both ``config`` and ``settings`` were passed.
        TypeError: the scorer cannot be called with these arguments.

    Example:
        app = create_app(scorer, max_batch_size=32)    # then: uvicorn module:app
    """
    if config is not None and settings:
        raise ConfigError("pass config or settings, not both")
    return RewardApp(scorer, config or ServerConfig(**settings))


class RewardApp:
    """A reward server as an ASGI application."""

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
        self._rate = None if config.rate is None else Gcra(config.rate, burst=max(0.0, config.rate - 1) / config.rate)
        self.active = 0
        self.draining = False
        self._idle = asyncio.Event()
        self.requests, self.rejections, self.completions = MetricFamily("route", "status"), MetricFamily("reason"), MetricFamily("outcome")
        self.seconds, self.batch_seconds = MetricFamily("route", bounds=SECONDS), MetricFamily(bounds=SECONDS)
        self.waits, self.sizes = MetricFamily(bounds=SECONDS), MetricFamily(bounds=SIZES)

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            if not self.draining:
                await self.drain()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _http(self, scope: Any, receive: Receive, send: Any) -> None:
        path, begun, status = scope["path"].removeprefix(scope.get("root_path", "")), time.perf_counter(), 500
        self.active += path not in ALWAYS
        try:
            failure: Exception | None = None
            reply: HTTPResponse | HTTPError
            try:
                reply = await self._reply(scope, receive, path)
            except HTTPError as error:
                self.rejections.add(error.kind)
                reply = error
            except ClientDisconnected:
                reply = HTTPResponse(499, b"")  # the status that nginx counts; the caller is gone
            except Exception as error:
                failure = error
                reply = HTTPError(500, "internal_error", f"the server failed with a {type(error).__name__}; see its log")
            status, headers = reply.status, {"content-type": reply.content_type, "content-length": str(len(reply.body)), **reply.headers}
            if self.draining:
                headers.setdefault("connection", "close")
            encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status, "headers": encoded})
            await send({"type": "http.response.body", "body": reply.body})
            if failure is not None:
                raise failure  # so that it is logged
        finally:
            self.active -= path not in ALWAYS
            if not self.active:
                self._idle.set()
            route = path if path in SCORING or path in STATUS else "other"
            self.requests.add(route, str(status))
            self.seconds.add(route, amount=time.perf_counter() - begun)

    async def _reply(self, scope: Any, receive: Receive, path: str) -> HTTPResponse | HTTPError:
        if self.draining and path not in ALWAYS:
            raise draining()
        if path not in OPEN:
            check_caller(scope, self.config)
        allowed = "POST" if path in SCORING else "GET" if path in STATUS else None
        if scope["method"] != allowed:
            text = f"there is no route {scope['method']} {path}"
            return HTTPError(405, "method_not_allowed", text, {"allow": allowed}) if allowed else HTTPError(404, "not_found", text)
        if path in SCORING:
            return await self._rewards(scope, receive, path)
        if path == "/metrics":
            return HTTPResponse(200, self.metrics().encode(), PROMETHEUS)
        if path == "/v1/models":
            model = {"id": self.config.model, "object": "model", "created": 0, "owned_by": "qreward"}
            return HTTPResponse(200, write({"object": "list", "data": [model]}))
        return HTTPResponse(503, write({"status": "draining"})) if self.draining else HTTPResponse(200, write({"status": "ok"}))

    async def _rewards(self, scope: Any, receive: Receive, path: str) -> HTTPResponse:
        self.admit()
        parts: list[bytes] = []
        try:
            await self._read_body(receive, {name.lower(): value for name, value in scope["headers"]}, parts)
            request = SCORING[path](b"".join(parts), self.config)
            scored = await _unless_disconnected(receive, self._score(request))
            return HTTPResponse(200, answer(request, scored, self.config.model, self.config.mode))
        finally:
            self.pending -= sum(map(len, parts))

    def admit(self) -> None:
        """Admit a scoring request before its body is read. Raise ``HTTPError`` if the queue is full or the rate is exceeded."""
        if (seconds := self.buffer.room_in(1)) > 0:
            raise busy("queue_full", f"{self.buffer.waiting} completions wait to be scored, and the queue is full", seconds)
        if self._rate is None:
            return
        now = asyncio.get_running_loop().time()
        if (seconds := self._rate.ready_at - now) > 1e-9:
            raise busy("rate_limited", f"more than {self._rate.rate:g} requests came in a second", seconds)
        self._rate.take(now)

    async def _read_body(self, receive: Receive, headers: Mapping[bytes, bytes], parts: list[bytes]) -> None:
        """Read the body into ``parts``, whose bytes are ``pending``."""
        config, most, length = self.config, self.config.max_body_bytes, 0
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise HTTPError(415, "packed_body", "send the body uncompressed, without a content-encoding")
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > most:
            raise too_large(most)
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
                        raise busy("memory_full", text, 1.0)  # it is not known when memory will be free
                    parts.append(part)
                    self.pending += len(part)
                    length += len(part)
                    if length > most:
                        raise too_large(most)
                    more = message.get("more_body", False)
        except TimeoutError:
            text = f"the request body did not arrive completely within {config.body_timeout:g} s"
            raise HTTPError(408, "body_timeout", text, {"connection": "close"}) from None

    async def _score(self, request: ScoreRequest) -> list[ScoreResult]:
        query = request.query
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

    async def drain(self) -> bool:
        """Accept no new requests, and finish the running requests."""
        self.draining = True
        try:
            async with asyncio.timeout(self.config.drain_timeout):
                self._idle.clear()
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
            async with asyncio.timeout(1.0):  # in which aborted requests can report their errors to callers
                await self.buffer.close(drain=False)

    # metrics

    def _count_batch(self, record: BatchRecord) -> None:
        self.batch_seconds.add(amount=record.seconds)
        self.sizes.add(amount=record.items)
        for wait in record.waits:
            self.waits.add(amount=wait)

    def metrics(self) -> str:
        """Return the metrics in the Prometheus text format. A number is a gauge."""
        found: dict[str, tuple[str, MetricFamily | float]] = {
            "qreward_server_requests_total": ("Responses, by route and status.", self.requests),
            "qreward_server_request_seconds": ("Seconds from request to response, by route.", self.seconds),
            "qreward_server_rejections_total": ("Requests that got no rewards, by reason.", self.rejections),
            "qreward_server_completions_total": ("Completions that were scored, and that failed.", self.completions),
            "qreward_server_active_requests": ("Requests in flight.", self.active),
            "qreward_server_pending_bytes": ("Bytes of requests that wait for a response.", self.pending),
            "qreward_server_draining": ("1 while the server shuts down.", self.draining),
            "qreward_serve_batch_queue_length": ("Completions that wait for a batch.", self.buffer.waiting),
            "qreward_serve_batch_in_flight": ("Batches in flight.", self.buffer.stats().in_flight),
            "qreward_serve_batch_wait_time_seconds": ("Seconds that a completion waited for its batch.", self.waits),
            "qreward_serve_batch_execution_time_seconds": ("Seconds that the scorer took for a batch.", self.batch_seconds),
            "qreward_serve_actual_batch_size": ("Completions in a batch.", self.sizes),
        }
        lines: list[str] = []
        for name, (text, metric) in found.items():
            lines.append(f"# HELP {name} {text}")
            if isinstance(metric, MetricFamily):
                lines += [f"# TYPE {name} {metric.kind}", *metric.samples(name)]
            else:
                lines += [f"# TYPE {name} gauge", f"{name} {_number(metric)}"]
        return "\n".join(lines) + "\n"


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


def check_caller(scope: Mapping[str, Any], config: ServerConfig) -> None:
    if config.token is None:
        host = (scope.get("server") or ("",))[0]
        is_address = host[:1].isdigit() or ":" in host  # False for a name, or for the path of a Unix socket
        if is_address and not is_loopback(host):
            message = "a server without a token answers only requests from its own machine; set token in its configuration"
            raise HTTPError(403, "forbidden", message)
        return
    given = next((value for name, value in scope["headers"] if name.lower() == b"authorization"), b"")
    scheme, _, token = given.partition(b" ")
    right = hmac.compare_digest(token.strip(), config.token.get_secret_value().encode())
    if scheme.lower() != b"bearer" or not right:
        raise HTTPError(401, "unauthorized", "send the server's token as 'Authorization: Bearer ...'", {"www-authenticate": "Bearer"})


# a server in this process, which the caller or a signal stops


class RewardServer:
    """A reward server in the running event loop, for the duration of an ``async with`` block, whose end finishes the running requests.

    The arguments are those of :func:`create_app`.

    Attributes:
        url: base URL of the server, such as ``http://127.0.0.1:5000``.
        service: the service that implements the routes.
        all_done: after shutdown, whether all requests finished within ``drain_timeout``.

    Raises:
        ConfigError: a setting is invalid, or the address cannot be bound when the block begins.
        TypeError: the scorer cannot be called.
        ModuleNotFoundError: uvicorn is not installed.

    Example:
        async with RewardServer(scorer, port=0) as server:
            print(server.url)
    """

    url: str
    all_done = True

    def __init__(self, scorer: Any, config: ServerConfig | None = None, **settings: Any) -> None:
        try:
            import uvicorn  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}; the reward server needs it: pip install 'qreward[server]'", name=error.name) from error
        self.service = create_app(scorer, config, **settings)
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        self._uvicorn = uvicorn.Server(uvicorn.Config(self.service, ws="none", timeout_graceful_shutdown=2, backlog=2048, **quiet))
        self._uvicorn.capture_signals = nullcontext  # type: ignore[method-assign,assignment] # no signal handlers
        self._draining: asyncio.Task[bool] | None = None

    async def __aenter__(self) -> Self:
        config = self.service.config
        listener = _bind(config.host, config.port)
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._serving = asyncio.ensure_future(self._uvicorn.serve(sockets=[listener]))
        self._serving.add_done_callback(lambda _: listener.close())
        try:
            await self._started()
        except asyncio.CancelledError:
            await asyncio.shield(self._stop())
            raise
        if self._serving.done():
            await self._serving
        return self

    async def _started(self) -> None:
        """Wait until the server accepts requests or has failed to start."""
        while not (self._uvicorn.started or self._serving.done()):  # noqa: ASYNC110 - uvicorn has a flag and no event
            await asyncio.sleep(0.001)

    async def _stop(self) -> None:
        """Stop the server. First wait until its start is complete, because uvicorn does not clean up a partial start."""
        await self._started()
        self._uvicorn.should_exit = True
        await self._serving

    async def __aexit__(self, *_: object) -> None:
        self._draining = asyncio.ensure_future(self.service.drain())
        try:
            self.all_done = await asyncio.shield(self._draining)
        except asyncio.CancelledError:
            self.all_done = False
            self.abort()
            await self.service.abort()
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # cancelled from outside, not by abort()
                raise
        finally:
            await asyncio.shield(self._stop())

    def abort(self) -> None:
        if self._draining is not None:
            self._draining.cancel()


async def serve(scorer: Any, config: ServerConfig | None = None, ready: Callable[[str], object] | None = None) -> bool:
    """Serve until SIGTERM or SIGINT, then finish the running requests. A second signal aborts these requests.

    ``ready`` is called with the URL as soon as the server accepts requests. Return whether all running requests finished within
    ``drain_timeout``. The errors are those of :class:`RewardServer`.
    """
    server, stopping = RewardServer(scorer, config), asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            server.abort()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with server:
            if ready is not None:
                ready(server.url)
            await stopping.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return server.all_done


def run(scorer: Any, config: ServerConfig | None = None, ready: Callable[[str], object] | None = None) -> bool:
    """Run :func:`serve` in a new event loop. The arguments, the return value and the errors are the same as for :func:`serve`."""
    return asyncio.run(serve(scorer, config, ready))


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen at host {host!r}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {host!r}, port {port}: {error.strerror}; choose another port, or 0 for any") from None
    return listener


# metrics in the Prometheus text format 0.0.4


class MetricFamily:
    """A Prometheus counter, or with ``bounds`` a histogram. It has one series for each set of label values."""

    def __init__(self, *labels: str, bounds: tuple[float, ...] = ()) -> None:
        self.kind = "histogram" if bounds else "counter"
        self._labels, self._bounds = labels, bounds
        self._series: dict[tuple[str, ...], list[float]] = {}
        if not labels:
            self._of(())

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Count ``amount``, or observe it in a histogram."""
        series = self._of(values)
        series[-1] += amount
        if self._bounds:
            series[bisect_left(self._bounds, amount)] += 1

    def samples(self, name: str) -> Iterator[str]:
        for values, (*buckets, total) in self._series.items():
            labels = [*zip(self._labels, values, strict=True)]
            if not buckets:
                yield f"{name}{_braces(labels)} {_number(total)}"
                continue
            count = 0.0
            for bound, more in zip((*map(_number, self._bounds), "+Inf"), buckets, strict=True):
                count += more
                yield f"{name}_bucket{_braces([*labels, ('le', bound)])} {_number(count)}"
            yield f"{name}_sum{_braces(labels)} {_number(total)}"
            yield f"{name}_count{_braces(labels)} {_number(count)}"

    def _of(self, values: tuple[str, ...]) -> list[float]:
        # A histogram has a bucket for each bound and a bucket for larger values. The sum of all values comes last.
        return self._series.setdefault(values, [0.0] * (len(self._bounds) + 2 if self._bounds else 1))


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    pairs = [f'{name}="{value}"' for name, value in labels]  # no value holds a character that must be escaped
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
