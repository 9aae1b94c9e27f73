"""What every engine must get right on a body that comes piece by piece: the pieces, leaving early, breaking off, using a line again."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import httpx2
import pytest
from shared_tools import PATIENCE, each
from transport_server import ENGINES, PATH, Connection, Request, Script, Server, always, answer, hang, transport_of

from qreward.codecs.base import TransportError
from qreward.settings.policies import Endpoint
from qreward.transport.base import ByteStream
from qreward.transport.connection import open_transport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: r-1\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def rest_of(stream: ByteStream) -> bytes:
    """All that is still to come."""
    pieces = []
    while data := await stream.read():
        pieces.append(data)
    return b"".join(pieces)


def begun(then: Script = hang) -> Script:
    """A script that sends the head and the beginning of a body, and goes on by another."""

    async def script(request: Request, connection: Connection) -> None:
        await connection.send(HEAD + piece(b"data: 1\n\n"))
        await then(request, connection)

    return script


@each("engine", ENGINES)
async def test_a_server_that_is_faster_than_its_reader_waits(engine: str) -> None:
    """Otherwise the memory of a slow reader would grow with whatever a server sends."""
    sent, flood = 0, piece(b"x" * 65536)

    async def script(_: Request, connection: Connection) -> None:
        nonlocal sent
        await connection.send(HEAD)
        for _ in range(400):
            await connection.send(flood)
            sent += 1
        await connection.send(END)

    async with Server(script) as server, transport_of(engine, server.url) as transport:
        stream = await transport.stream(PATH, b"{}")
        before = -1
        while sent > before or not sent:
            before = sent
            await asyncio.sleep(0.05)
        assert 0 < sent < 300
        assert len(await rest_of(stream)) == 65536 * 400


@each("streamed, script", [(False, hang), (False, begun()), (True, begun())])
async def test_closing_the_transport_ends_what_is_still_arriving(streamed: bool, script: Script) -> None:
    """aiohttp by itself would let its reader wait for ever. A client of the user's own stays open, and its streams with it."""
    async with Server(script) as server, transport_of("aiohttp", server.url) as transport:
        ask = (await transport.stream(PATH, b"{}")).read if streamed else lambda: transport.post(PATH, b"{}")
        if streamed:
            await ask()
        reader = asyncio.create_task(ask())
        await server.until(1)
        await asyncio.sleep(0.01)
        await transport.aclose()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(TransportError) as caught:
                await reader
        assert caught.value.sent


@each("reads", [False, True])
@each("package", [httpx, httpx2])
async def test_a_hook_that_raises_for_status_is_still_a_status_with_whatever_it_read_of_the_body(package: Any, reads: bool) -> None:
    async def hook(response: Any) -> None:
        if reads:
            await response.aread()
        response.raise_for_status()

    async with (
        Server(always(answer(b"full", status=429, retry_after="7"))) as server,
        package.AsyncClient(event_hooks={"response": [hook]}, trust_env=False) as client,
    ):
        stream = await open_transport(Endpoint(server.url, http_client=client)).stream(PATH, b"{}")
        assert (stream.status, stream.headers.get("retry-after"), await rest_of(stream)) == (429, "7", b"full" if reads else b"")
        await stream.aclose()
