"""A server in this process: a socket, uvicorn, and an end in good order. It is stopped by whoever started it, or by a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import uvicorn

from qreward.errors import ConfigError
from qreward.server.app import create_app
from qreward.server.config import ServerConfig
from qreward.server.service import Service

_BACKLOG = 2048
_FAREWELL = 2
"""Seconds in which the last answers may be sent."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RewardServer:
    """A reward server in the running event loop, for as long as its ``async with`` lasts; then it finishes what is under way.

    Args:
        scorer: see :class:`~qreward.batching.reward_buffer.RewardBuffer`.
        config: the settings; or
        settings: the same by name; see :class:`ServerConfig`.

    Attributes:
        url: where it is reached, such as ``http://127.0.0.1:5000``.
        service: what is behind its routes.
        all_done: after its end, whether everything was finished within ``drain_timeout``.

    Raises:
        ConfigError: a setting is wrong; or, when it is entered, the address cannot be listened at.
        TypeError: the scorer cannot be called.

    Example:
        async with RewardServer(scorer, port=0) as server:
            print(server.url)
    """

    url: str
    all_done = True

    def __init__(self, scorer: Any, config: ServerConfig | None = None, **settings: Any) -> None:
        app = create_app(scorer, config, **settings)
        self.service: Service = app.state.qreward
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        self._uvicorn = _Uvicorn(uvicorn.Config(app, ws="none", timeout_graceful_shutdown=_FAREWELL, backlog=_BACKLOG, **quiet))
        self._draining: asyncio.Task[bool] | None = None

    async def __aenter__(self) -> Self:
        config = self.service.config
        listener = _bound(config.host, config.port)
        self.url = _address_of(listener)
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
        """Wait until it serves, or has failed to."""
        begun = asyncio.ensure_future(self._uvicorn.begun.wait())
        try:
            await asyncio.wait({self._serving, begun}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()

    async def _stop(self) -> None:
        """End the server. One that is still starting is started first: uvicorn closes nothing of what is half begun."""
        await self._started()
        self._uvicorn.should_exit = True
        await self._serving

    async def __aexit__(self, *_: object) -> None:
        self._draining = asyncio.ensure_future(self.service.drain())
        try:
            self.all_done = await asyncio.shield(self._draining)
        except asyncio.CancelledError:
            self.all_done = False
            self.hurry()
            await self.service.break_off()
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it was not hurry()
                raise
        finally:
            await asyncio.shield(self._stop())

    def hurry(self) -> None:
        """Break off what is under way, if the server is about to end."""
        if self._draining is not None:
            self._draining.cancel()


async def serve(scorer: Any, config: ServerConfig | None = None, ready: Callable[[str], object] | None = None) -> bool:
    """Serve until SIGTERM or SIGINT, then finish what is under way; a second signal breaks it off.

    Args:
        scorer: see :class:`RewardServer`, also for what is raised.
        config: the settings.
        ready: called with the address as soon as it is served.

    Returns:
        Whether all that was under way was finished within ``drain_timeout``.
    """
    server, asked = RewardServer(scorer, config), asyncio.Event()

    def on_signal() -> None:
        if asked.is_set():
            server.hurry()
        asked.set()

    with _handled(on_signal):
        async with server:
            if ready is not None:
                ready(server.url)
            await asked.wait()
    return server.all_done


def run(scorer: Any, config: ServerConfig | None = None, ready: Callable[[str], object] | None = None) -> bool:
    """``serve`` in an event loop of its own."""
    return asyncio.run(serve(scorer, config, ready))


class _Uvicorn(uvicorn.Server):
    """uvicorn that leaves signals alone, and says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def _handled(on_signal: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that is bound; uvicorn lets it listen. Raises ``ConfigError``."""
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


def _address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
