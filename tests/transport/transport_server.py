"""A TCP server on loopback that does what a script says, byte for byte; and transports of each kind to try on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import httpx2
from shared_tools import PATIENCE

from qreward.codecs.base import Reply
from qreward.settings.policies import Endpoint
from qreward.transport.backend import HttpBackend, open_transport
from qreward.transport.base import ByteStream, HttpTransport

CERTIFICATE = Path(__file__).parent / "data" / "loopback.pem"
KEY = Path(__file__).parent / "data" / "loopback.key"


@dataclass
class Request:
    """What the server was asked."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    """One connection as the server sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def hang(self) -> None:
        """Answer nothing; return when the client has gone."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.reader.read()
        self.gone.set()

    def reset(self) -> None:
        """Break the connection with a RST."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Request, Connection], Awaitable[None]]


class Server:
    """Accepts connections, reads requests, and hands each to the script."""

    def __init__(self, script: Script, *, tls: bool = False) -> None:
        self.script = script
        self.tls = tls
        self.requests: list[Request] = []
        self.connections: list[Connection] = []
        self.arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Server:
        context = None
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE, KEY)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self.connections:
            connection.writer.transport.abort()
        await asyncio.sleep(0)

    async def until(self, count: int) -> None:
        """Wait until so many requests have arrived."""
        async with asyncio.timeout(PATIENCE), self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, len(self.connections))
        self.connections.append(connection)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: Connection) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            while (request := await _read(connection.reader)) is not None:
                self.requests.append(request)
                async with self.arrived:
                    self.arrived.notify_all()
                await self.script(request, connection)
        connection.gone.set()
        connection.writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Request(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def answer(body: bytes | dict[str, Any], status: int = 200, **headers: str) -> bytes:
    """A whole HTTP answer; ``retry_after="1"`` makes the header ``retry-after: 1``."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(data))} | {n.replace("_", "-"): v for n, v in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + data


def always(*pieces: bytes) -> Script:
    """A script that gives every request the same bytes."""

    async def script(_: Request, connection: Connection) -> None:
        await connection.send(*pieces)

    return script


async def hang(_: Request, connection: Connection) -> None:
    """A script that never answers."""
    await connection.hang()


PATH = "/chat/completions"
WAYS = ("post", "get", "stream")


async def send(transport: HttpTransport, way: str = "post", body: bytes = b"{}", headers: dict[str, str] | None = None) -> Reply:
    """Ask in one of the three ways, and read the whole answer."""
    if way != "stream":
        return await (transport.get(PATH, headers) if way == "get" else transport.post(PATH, body, headers))
    stream = await transport.begin("POST", PATH, body, headers)
    try:
        return Reply(stream.status, stream.headers, await rest_of(stream))
    finally:
        await stream.aclose()


async def rest_of(stream: ByteStream) -> bytes:
    """All that is still to come of a body."""
    pieces = []
    while piece := await stream.read():
        pieces.append(piece)
    return b"".join(pieces)


ENGINES = ["aiohttp", "httpx", "httpx2"]
_PACKAGES = {"httpx": httpx, "httpx2": httpx2}


@contextlib.asynccontextmanager
async def endpoint_of(engine: str, url: str, *, trusted: bool = False, **settings: Any) -> AsyncIterator[Endpoint]:
    """An endpoint whose requests go by the given engine; ``trusted`` makes it trust the certificate of the tests."""
    settings.setdefault("proxy", "")
    if engine == "aiohttp":
        yield Endpoint(url, verify=str(CERTIFICATE) if trusted else True, **settings)
        return
    verify = ssl.create_default_context(cafile=CERTIFICATE) if trusted else True
    async with _PACKAGES[engine].AsyncClient(verify=verify, trust_env=False) as client:
        yield Endpoint(url, http_client=client, **settings)


@contextlib.asynccontextmanager
async def transport_of(engine: str, url: str, **settings: Any) -> AsyncIterator[HttpTransport]:
    """A transport to the server at ``url``, closed afterwards."""
    async with endpoint_of(engine, url, **settings) as endpoint:
        transport = open_transport(endpoint)
        try:
            yield transport
        finally:
            await transport.aclose()


@contextlib.asynccontextmanager
async def backend_to(
    script: Script, engine: str = "aiohttp", *, tls: bool = False, **settings: Any
) -> AsyncIterator[tuple[Server, Endpoint, HttpBackend]]:
    """A server that follows a script, an endpoint for it, and a backend that is closed afterwards."""
    async with Server(script, tls=tls) as server, endpoint_of(engine, server.url, trusted=tls, **settings) as endpoint:
        backend = HttpBackend()
        try:
            yield server, endpoint, backend
        finally:
            await backend.aclose()
