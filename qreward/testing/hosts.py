"""Where the servers of a fleet run: in the caller's loop, in a thread of their own, or in a child process.

Each host takes the same calls, by name, and answers them at once. Knows nothing of what a fleet is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from qreward.errors import ConfigError
from qreward.testing.server import FakeServer
from qreward.testing.spec import FakeEndpoint, FleetSpec

_PATIENCE = 10.0  # seconds for a child to end by itself
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class Servers:
    """The servers of one fleet in the running loop; its methods are the calls that every host takes."""

    def __init__(self) -> None:
        self._servers: dict[str, FakeServer] = {}

    async def start(self, spec: FleetSpec) -> None:
        raise_file_limit()
        try:
            for endpoint in spec.endpoints:
                self._servers[endpoint.name] = _listening(endpoint)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))

    def ports(self) -> dict[str, int]:
        return {name: server.port for name, server in self._servers.items()}

    def seen(self) -> list[Any]:
        return [msgspec.to_builtins(server.seen()) for server in self._servers.values()]

    def configure(self, endpoint: FakeEndpoint) -> None:
        self._servers[endpoint.name].configure(endpoint)

    def reset(self) -> None:
        for server in self._servers.values():
            server.reset()

    def kill(self, name: str) -> None:
        self._servers[name].kill()

    def revive(self, name: str) -> None:
        self._servers[name].revive()


def _listening(endpoint: FakeEndpoint) -> FakeServer:
    try:
        return FakeServer(endpoint)
    except OSError as error:
        text = f"endpoint {endpoint.name!r} cannot listen on port {endpoint.port}: {error.strerror}; set another port, or 0 for any"
        raise OSError(error.errno, text) from None
    except ConfigError as error:
        raise ConfigError(f"endpoint {endpoint.name!r}: {error}") from None


class InLoop:
    """In the caller's own loop."""

    def __init__(self, spec: FleetSpec) -> None:
        self._spec = spec
        self._servers = Servers()

    async def start(self) -> None:
        await self._servers.start(self._spec)

    async def stop(self) -> None:
        await self._servers.aclose()

    def call(self, verb: str, *args: Any) -> Any:
        return getattr(self._servers, verb)(*args)


class InThread:
    """In a loop of its own, in a background thread."""

    def __init__(self, spec: FleetSpec, loop_factory: LoopFactory | None = None) -> None:
        self._spec = spec
        self._servers = Servers()
        self._loop_factory = loop_factory
        self._thread = threading.Thread(target=self._run, name="qreward-fake-fleet", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def call(self, verb: str, *args: Any) -> Any:
        async def answer() -> Any:
            return getattr(self._servers, verb)(*args)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        await self._servers.start(self._spec)
        self._started.set()
        await self._stopping.wait()
        await self._servers.aclose()


class InProcess:
    """In a child process, spoken to by lines of JSON over its pipes. The child ends when its input does."""

    def __init__(self, spec: FleetSpec) -> None:
        for endpoint in spec.endpoints:
            _check_portable(endpoint)
        self._spec = spec
        self._turn = threading.Lock()

    def start(self) -> None:
        # A module of its own rather than multiprocessing: that would import the caller's __main__ once more.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "qreward.testing.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the parent
        )
        try:
            self._ask({"endpoints": [to_data(endpoint) for endpoint in self._spec.endpoints]})
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def call(self, verb: str, *args: Any) -> Any:
        for argument in args:
            if isinstance(argument, FakeEndpoint):
                _check_portable(argument)
        return self._ask({"verb": verb, "args": [to_data(each) if isinstance(each, FakeEndpoint) else each for each in args]})

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with self._turn:
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
    """The settings as JSON can hold them, the key included: for the pipe, for nothing else."""
    return endpoint.model_dump(mode="json", context={"reveal": True})


def _check_portable(endpoint: FakeEndpoint) -> None:
    if not isinstance(endpoint.responder, str):
        raise ConfigError(f"endpoint {endpoint.name!r}: with process=True a responder is written 'module:function', not a function")


def raise_file_limit() -> None:
    """Allow this process as many open sockets as it may have."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems have a lower limit than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def fast_loop() -> LoopFactory | None:
    """uvloop, if it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return uvloop.new_event_loop
