"""The servers of a fake fleet, and the hosts that run them: the caller's event loop, a background thread, or a child process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
from aiohttp import web

from qreward.errors import ConfigError
from qreward.server.import_string import load_object
from qreward.testing.endpoint import FakeEndpointState
from qreward.testing.handler import Handler
from qreward.testing.responses import Incoming, abort
from qreward.testing.spec import FakeEndpoint, FleetSpec

HOST = "127.0.0.1"
_BACKLOG = 4096


class Listener:
    """Accepts connections on a port. A listener can be closed and reopened on the same port. A closed listener refuses connections."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], port: int) -> None:
        self._make_protocol = make_protocol
        self._reserved = _bound(port)
        self.port: int = self._reserved.getsockname()[1]
        self._socket: socket.socket | None = None
        self._connecting: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Start to accept connections."""
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


_MOST_BODY = 256 * 1024 * 1024
_TURNS_TO_SETTLE = 3  # iterations of the event loop that cancelled handlers need to end


class FakeServer:
    """Runs one fake endpoint."""

    def __init__(self, spec: FakeEndpoint) -> None:
        self.state = FakeEndpointState(spec)
        self._handler = Handler(self.state)
        self._web = web.Server(
            self._handler,  # type: ignore[arg-type] # the requests come from request_factory
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
            self._die()
        else:
            self._listener.open()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        change = self.state.timeline.next_change(now)
        if change < math.inf:
            self._timer = asyncio.get_running_loop().call_later(change - now, self._follow_phases)

    def _die(self) -> None:
        self._listener.shut()
        for request in self._handler.under_way:
            if not request.dropped:
                self.state.ended_in("dead")
        self._drop_connections()

    def _drop_connections(self) -> None:
        for request in self._handler.under_way:
            request.dropped = True
        for connection in self._web.connections:
            abort(connection.transport)


def _make_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Incoming:
    return Incoming(message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=_MOST_BODY)


_GRACE = 10.0  # seconds that a child process has to end by itself
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class InLoop:
    """Runs the servers of one fleet in the running event loop."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._servers: dict[str, FakeServer] = {}

    async def start(self) -> None:
        raise_file_limit()
        try:
            for endpoint in self._spec.endpoints:
                self._servers[endpoint.name] = _listening(endpoint)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))

    def call(self, verb: str, *args: Any) -> Any:
        return getattr(self, verb)(*args)

    def ports(self) -> dict[str, int]:
        return {name: server.port for name, server in self._servers.items()}

    def seen(self) -> list[Any]:
        return [msgspec.to_builtins(server.state.seen()) for server in self._servers.values()]

    def configure(self, endpoint: FakeEndpoint) -> None:
        self._servers[endpoint.name].state.configure(endpoint)

    def reset(self) -> None:
        for server in self._servers.values():
            server.state.reset()

    def kill(self, name: str, killed: bool) -> None:
        self._servers[name].state.kill(killed)


def _listening(endpoint: FakeEndpoint) -> FakeServer:
    try:
        return FakeServer(endpoint)
    except OSError as error:
        text = f"endpoint {endpoint.name!r} cannot listen on port {endpoint.port}: {error.strerror}; set another port, or 0 for any"
        raise OSError(error.errno, text) from None
    except ConfigError as error:
        raise ConfigError(f"endpoint {endpoint.name!r}: {error}") from None


class InThread:
    """Runs the servers of one fleet in a separate event loop, in a background thread."""

    def __init__(self, spec: FleetSpec, loop_factory: LoopFactory | None = None) -> None:
        self._host = InLoop(spec)
        self._loop_factory = loop_factory
        self._thread = threading.Thread(target=self._run, name="qreward-fake-fleet", daemon=True)
        self._started: Future[None] = Future()

    def start(self) -> None:
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def call(self, verb: str, *args: Any) -> Any:
        async def answer() -> Any:
            return self._host.call(verb, *args)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        await self._host.start()
        self._started.set_result(None)
        await self._stopping.wait()
        await self._host.stop()


class InProcess:
    """Runs the servers of one fleet in a child process."""

    def __init__(self, spec: FleetSpec) -> None:
        self._endpoints = [to_data(endpoint) for endpoint in spec.endpoints]
        self._lock = threading.Lock()

    def start(self) -> None:
        # multiprocessing is not used, because it would import the caller's __main__ again.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "qreward.testing.subprocess_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C must reach the parent only
        )
        try:
            self._ask({"endpoints": self._endpoints})
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def call(self, verb: str, *args: Any) -> Any:
        return self._ask({"verb": verb, "args": [to_data(each) if isinstance(each, FakeEndpoint) else each for each in args]})

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with self._lock:
            try:
                self._child.stdin.write(json.dumps(question).encode() + b"\n")
                self._child.stdin.flush()
                line = self._child.stdout.readline()
            except BrokenPipeError:
                line = b""
        if not line:
            raise RuntimeError("the process of the fake fleet has ended; see stderr")
        reply = json.loads(line)
        if "error" in reply:
            raise (ConfigError if reply["config"] else RuntimeError)(reply["error"])
        return reply["ok"]


def to_data(endpoint: FakeEndpoint) -> dict[str, Any]:
    """Return the settings as JSON data, with the API key in clear text. The data may only be sent through the pipe to the child process."""
    if not isinstance(endpoint.responder, str):
        raise ConfigError(f"endpoint {endpoint.name!r}: with process=True a responder is written 'module:function', not a function")
    kind = type(endpoint)
    return {"class": f"{kind.__module__}:{kind.__qualname__}", **endpoint.model_dump(mode="json", context={"reveal": True})}


def from_data(data: dict[str, Any]) -> FakeEndpoint:
    """Return the settings from the data of ``to_data``."""
    kind = load_object(data.pop("class"), "class of a fake endpoint", "my_fakes:MyEndpoint")
    endpoint: FakeEndpoint = kind(**data)
    return endpoint


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard limit."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # on some systems the real limit is lower than the reported one
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fast_loop() -> LoopFactory | None:
    """Return the loop factory of uvloop. Return None if uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return uvloop.new_event_loop
