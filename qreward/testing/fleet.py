"""``FakeFleet``: real HTTP servers on loopback that behave like LLM judges, in a thread or a child process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from qreward.engine import background
from qreward.engine.portal import Portal
from qreward.errors import ClientClosed, ConfigError, did_you_mean
from qreward.settings.policies import Endpoint
from qreward.testing.endpoint import Seen
from qreward.testing.server import HOST, FakeServer
from qreward.testing.spec import FakeEndpoint, read_spec

_GRACE = 10.0  # seconds that a child process has to end by itself
_CHILD = "from qreward.testing.fleet import serve_parent; serve_parent()"


class FakeFleet:
    """Runs a fleet of fake judges on 127.0.0.1.

    ``with`` and ``async with`` run the fleet in a background thread. With ``process=True`` they run the fleet in a child process, which
    leaves the CPU time of the caller's process to the code under test.

    Args:
        endpoints: a list of :class:`FakeEndpoint`, a mapping, or the path of a ``.json``, ``.yaml`` or ``.toml`` file.
        process: whether the fleet runs in a child process (on uvloop, if uvloop is installed).

    Raises:
        ConfigError: a setting is invalid, or, with ``process=True``, a responder is not a string. When the fleet starts, ``ConfigError`` is
            also raised for a responder that cannot be imported.
        OSError: a configured port is in use when the fleet starts. With ``process=True``, the error is a ``RuntimeError``.

    Example:
        >>> with FakeFleet([FakeEndpoint("a"), FakeEndpoint("b", models=["judge-*"])]) as fleet:
        ...     [endpoint.models for endpoint in fleet.endpoints], fleet.seen("a").requests
        ([('*',), ('judge-*',)], 0)
    """

    def __init__(
        self, endpoints: Iterable[FakeEndpoint | Mapping[str, Any]] | Mapping[str, Any] | str | Path, process: bool = False
    ) -> None:
        self._process = process
        self._specs = {endpoint.name: self._usable(endpoint) for endpoint in read_spec(endpoints).endpoints}
        self._host: InThread | InProcess | None = None
        self._ports: dict[str, int] = {}
        self._last_seen: dict[str, Seen] = {}

    async def __aenter__(self) -> FakeFleet:
        return await asyncio.to_thread(self.__enter__) if self._process else self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__) if self._process else self.__exit__()

    def __enter__(self) -> FakeFleet:
        if self._host is not None:
            raise RuntimeError("the fleet is running already; make another FakeFleet for a second one")
        host = InProcess() if self._process else InThread()
        try:
            self._ports = host.run("start", list(self._specs.values()))
        except BaseException:
            host.stop()
            raise
        self._host = host
        return self

    def __exit__(self, *_: object) -> None:
        host, self._host = self._running(), None
        with contextlib.suppress(RuntimeError, ClientClosed):  # a child process that has died cannot report, and a forked child cannot ask
            self._last_seen = host.run("call", "seen")
        host.stop()

    @property
    def names(self) -> list[str]:
        """The names of the endpoints, in the order of the settings."""
        return list(self._specs)

    @property
    def urls(self) -> dict[str, str]:
        """Name of an endpoint -> base URL, such as ``http://127.0.0.1:40001/v1``."""
        self._running()
        return {name: f"http://{HOST}:{port}/v1" for name, port in self._ports.items()}

    @property
    def endpoints(self) -> list[Endpoint]:
        """The endpoints as settings for a ``QRewardClient``."""
        return [
            Endpoint(url, name=name, models=spec.models, api_key=spec.api_key, kind=spec.kind, proxy="")
            for (name, url), spec in zip(self.urls.items(), self._specs.values(), strict=True)
        ]

    def seen(self, name: str) -> Seen:
        """Return the statistics of an endpoint. After the fleet has stopped, return the last statistics.

        Raises:
            ConfigError: the name is unknown.
        """
        self._named(name)
        known: dict[str, Seen] = self._last_seen if self._host is None and self._last_seen else self._running().run("call", "seen")
        return known[name]

    def reset(self) -> None:
        """Start over with the present settings: set the statistics to zero, refill the rate limits, and restart the phases and faults.

        A killed endpoint stays killed.
        """
        self._running().run("call", "reset")

    def set(self, name: str, **changes: Any) -> None:
        """Change settings of an endpoint while it runs. Requests that are being served keep the old settings.

        A change of ``rpm``, ``tpm`` or ``burst`` refills the buckets of both rate limits. The times of changed
        ``phases`` count from the start of the fleet, or from the last :meth:`reset`. ``name`` and ``port`` cannot be changed.

        Raises:
            ConfigError: the name is unknown, or a setting is invalid.
        """
        if "port" in changes:
            raise ConfigError(f"port of endpoint {name!r} cannot be changed while it runs")
        before = self._named(name)
        changed = self._usable(type(before)(**{**dict(before), **changes}))
        self._running().run("call", "configure", changed, name=name)
        self._specs[name] = changed

    def kill(self, name: str) -> None:
        """Stop an endpoint: abort all connections, and do not listen until :meth:`revive` is called."""
        self._running().run("call", "kill", name=self._named(name).name)

    def revive(self, name: str) -> None:
        """Make a killed endpoint listen again on the same port, unless a ``dead`` phase is active."""
        self._running().run("call", "kill", False, name=self._named(name).name)

    def _named(self, name: str) -> FakeEndpoint:
        if name not in self._specs:
            raise ConfigError(f"there is no endpoint {name!r}; {did_you_mean(name, self._specs, otherwise='the endpoints are')}")
        return self._specs[name]

    def _usable(self, endpoint: FakeEndpoint) -> FakeEndpoint:
        if self._process and not isinstance(endpoint.responder, str):
            text = f"endpoint {endpoint.name!r}: with process=True a responder is written 'module:function', not a function"
            raise ConfigError(text)
        return endpoint

    def _running(self) -> InThread | InProcess:
        if self._host is None:
            raise RuntimeError("the fleet is not running; start it with 'with' or 'async with'")
        return self._host


class InThread:
    """Runs the servers of one fleet in an event loop in a thread."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._servers: dict[str, FakeServer] = {}
        self._portal = Portal("qreward-fake-fleet", loop_factory)
        background.watch(self._portal, Portal.detach_after_fork)

    def run(self, method: str, *args: Any, **options: Any) -> dict[str, Any]:
        """Call ``start`` or ``call``. A responder, which is called in the thread itself, does not wait for it."""
        called: Callable[[], dict[str, Any]] = partial(getattr(self, method), *args, **options)

        async def run() -> dict[str, Any]:
            return called()

        return called() if self._portal.is_here() else self._portal.call(run)

    def stop(self) -> None:
        with contextlib.suppress(ClientClosed):  # a forked child, whose parent has the servers
            self._portal.call(self.aclose)
        self._portal.close()

    def start(self, endpoints: list[FakeEndpoint]) -> dict[str, int]:
        _raise_file_limit()
        for endpoint in endpoints:
            try:
                self._servers[endpoint.name] = (endpoint.server_class or FakeServer)(endpoint)
            except OSError as error:
                text = f"cannot listen on port {endpoint.port}: {error.strerror}; set another port, or 0 for any"
                raise OSError(error.errno, f"endpoint {endpoint.name!r} {text}") from None
            except ConfigError as error:
                raise ConfigError(f"endpoint {endpoint.name!r}: {error}") from None
        return {name: server.port for name, server in self._servers.items()}

    def call(self, method: str, *args: Any, name: str | None = None) -> dict[str, Any]:
        """Call a method of the server of one endpoint, or of all endpoints. Return the results by the names of the endpoints."""
        called = [name] if name is not None else self._servers
        return {each: getattr(self._servers[each], method)(*args) for each in called}

    async def aclose(self) -> None:
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))


class InProcess:
    """Runs the servers of one fleet in a child process. Calls and replies are pickled and go through pipes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # multiprocessing is not used, because it would import the caller's __main__ again.
        self._child = subprocess.Popen(  # noqa: S603 - the own interpreter
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C must reach the parent only
        )

    def stop(self) -> None:
        try:
            self._child.communicate(timeout=_GRACE)  # closes stdin, at which the child ends
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()

    def run(self, *call: Any, **options: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with self._lock:
            try:
                pickle.dump((call, options), self._child.stdin)
                self._child.stdin.flush()
                kind, reply = pickle.load(self._child.stdout)  # noqa: S301 - from the own child
            except (BrokenPipeError, EOFError):
                raise RuntimeError("the process of the fake fleet has ended; see stderr") from None
        if kind is not None:
            raise kind(reply)
        return reply  # type: ignore[no-any-return]


def serve_parent() -> None:
    """Run in the child process: start a fleet, reply to each call of the parent, and end when the parent closes the pipe."""
    calls, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of a responder goes to stderr, because it must not mix with the replies
    # With thousands of requests in flight and the default thresholds, garbage collection takes a third of the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - an extra
    except ImportError:
        host = InThread()
    else:
        host = InThread(new_event_loop)
    with contextlib.suppress(EOFError):
        while True:
            call, options = pickle.load(calls)  # noqa: S301 - from the parent
            reply: tuple[type[Exception] | None, Any]
            try:
                reply = None, host.run(*call, **options)
            except Exception as error:
                reply = ConfigError if isinstance(error, ConfigError) else RuntimeError, str(error)
            pickle.dump(reply, replies)
            replies.flush()
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
