"""A listening socket that can be closed and opened again on the same port. Knows sockets, nothing of HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

HOST = "127.0.0.1"
_BACKLOG = 4096


class Door:
    """Lets connections in while it is open. While it is shut, they are refused.

    A second socket, bound but not listening, keeps the port from being given to anyone else.
    """

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], port: int) -> None:
        self._make_protocol = make_protocol
        self._keeper = _bound(port)
        self.port: int = self._keeper.getsockname()[1]
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._listener is not None

    def open(self) -> None:
        """Connections succeed from now on; they are served from the next turn of the loop on."""
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(_BACKLOG)
            task = asyncio.get_running_loop().create_task(self._serve(self._listener))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def shut(self) -> None:
        """Connections are refused from now on. Those there are stay as they are."""
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()
        self._server = self._listener = None

    async def aclose(self) -> None:
        self.shut()
        self._keeper.close()
        await asyncio.gather(*self._opening)

    async def _serve(self, listener: socket.socket) -> None:
        if listener is not self._listener:
            return  # shut in the meantime
        # Without start_serving this does not suspend, so the server is known before anyone can shut the door.
        loop = asyncio.get_running_loop()
        server = self._server = await loop.create_server(self._make_protocol, sock=listener, backlog=_BACKLOG, start_serving=False)
        await server.start_serving()


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
