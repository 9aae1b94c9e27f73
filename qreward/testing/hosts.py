"""Where the servers of a fake fleet run: in the caller's event loop, a background thread, or a child process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from qreward.errors import ConfigError
from qreward.testing.endpoint import Seen
from qreward.testing.server import FakeServer
from qreward.testing.spec import FakeEndpoint, FleetSpec

_GRACE = 10.0  # seconds that a child process has to end by itself
_CHILD = "from qreward.testing.hosts import serve_parent; serve_parent()"
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class InLoop:
    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._servers: dict[str, FakeServer] = {}

    async def start(self) -> None:
        _raise_file_limit()
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

    def seen(self) -> dict[str, Seen]:
        return {name: server.state.seen() for name, server in self._servers.items()}

    def configure(self, endpoint: FakeEndpoint) -> None:
        self._servers[endpoint.name].state.configure(endpoint)

    def reset(self) -> None:
        for server in self._servers.values():
            server.state.reset()

    def kill(self, name: str, killed: bool) -> None:
        self._servers[name].state.kill(killed)


def _listening(endpoint: FakeEndpoint) -> FakeServer:
    try:
        return (endpoint.server_class or FakeServer)(endpoint)
    except OSError as error:
        text = f"endpoint {endpoint.name!r} cannot listen on port {endpoint.port}: {error.strerror}; set another port, or 0 for any"
        raise OSError(error.errno, text) from None
    except ConfigError as error:
        raise ConfigError(f"endpoint {endpoint.name!r}: {error}") from None


class InThread:
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
    """Runs the servers of one fleet in a child process. Calls and replies are pickled and go through pipes."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()

    def start(self) -> None:
        # multiprocessing is not used, because it would import the caller's __main__ again.
        self._child = subprocess.Popen(  # noqa: S603 - the own interpreter
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C must reach the parent only
        )
        try:
            self.call("start", self._spec)
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
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        for endpoint in [each for arg in args for each in (arg.endpoints if isinstance(arg, FleetSpec) else [arg])]:
            if isinstance(endpoint, FakeEndpoint) and not isinstance(endpoint.responder, str):
                text = f"endpoint {endpoint.name!r}: with process=True a responder is written 'module:function', not a function"
                raise ConfigError(text)
        with self._lock:
            try:
                pickle.dump((verb, args), self._child.stdin)
                self._child.stdin.flush()
                kind, reply = pickle.load(self._child.stdout)  # noqa: S301 - from the own child
            except (BrokenPipeError, EOFError):
                raise RuntimeError("the process of the fake fleet has ended; see stderr") from None
        if kind is not None:
            raise kind(reply)
        return reply


def serve_parent() -> None:
    """Run in the child process: start a fleet, reply to each call of the parent, and end when the parent closes the pipe."""
    calls, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of a responder goes to stderr, because it must not mix with the replies
    # With thousands of requests in flight and the default thresholds, garbage collection takes a third of the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    host: InThread | None = None
    reply: tuple[type[Exception] | None, Any]
    with contextlib.suppress(EOFError):
        while True:
            verb, args = pickle.load(calls)  # noqa: S301 - from the parent
            try:
                if host is None:
                    starting = InThread(args[0], fast_loop())
                    starting.start()
                    host, reply = starting, (None, None)
                else:
                    reply = None, host.call(verb, *args)
            except Exception as error:
                reply = ConfigError if isinstance(error, ConfigError) else RuntimeError, str(error)
            pickle.dump(reply, replies)
            replies.flush()
    if host is not None:
        host.stop()


def _raise_file_limit() -> None:
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
