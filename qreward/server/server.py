"""Runs the reward server in this process, with a socket, uvicorn and graceful shutdown. The caller or a signal stops the server."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import uvicorn

from qreward.errors import ConfigError
from qreward.server.app import RewardApp, create_app
from qreward.server.config import ServerConfig

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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

    Example:
        async with RewardServer(scorer, port=0) as server:
            print(server.url)
    """

    url: str
    all_done = True

    def __init__(self, scorer: Any, config: ServerConfig | None = None, **settings: Any) -> None:
        app = create_app(scorer, config, **settings)
        self.service: RewardApp = app
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        self._uvicorn = _Uvicorn(uvicorn.Config(app, ws="none", timeout_graceful_shutdown=2, backlog=2048, **quiet))
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
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        async with server:
            if ready is not None:
                ready(server.url)
            await stopping.wait()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return server.all_done


def run(scorer: Any, config: ServerConfig | None = None, ready: Callable[[str], object] | None = None) -> bool:
    """Run :func:`serve` in a new event loop. The arguments, the return value and the errors are the same as for :func:`serve`."""
    return asyncio.run(serve(scorer, config, ready))


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that installs no signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
