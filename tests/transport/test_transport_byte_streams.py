"""What every engine must get right on a body that comes piece by piece: the pieces, leaving early, breaking off, using a line again."""

from __future__ import annotations

import asyncio
import gzip
import random
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


async def gone(server: Server, number: int = 0) -> None:
    async with asyncio.timeout(PATIENCE):
        await server.connections[number].gone.wait()


@each("engine", ENGINES)
async def test_status_and_headers_come_before_the_body_and_each_piece_as_soon_as_it_is_sent(engine: str) -> None:
    go_on = asyncio.Event()

    async def script(_: Request, connection: Connection) -> None:
        await connection.send(HEAD)
        for data in (b"one", b"two"):
            await go_on.wait()
            go_on.clear()
            await connection.send(piece(data))
        await go_on.wait()
        await connection.send(END)

    async with Server(script) as server, transport_of(engine, server.url, api_key="key-of-mine") as transport:
        stream = await transport.stream(PATH, b'{"a":1}', {"X-Call": "7"})
        assert (stream.status, stream.headers.get("X-Request-ID")) == (200, "r-1")
        for data in (b"one", b"two", b""):
            go_on.set()
            assert await stream.read() == data
        await stream.aclose()
    (request,) = server.requests
    assert (request.line, request.body) == ("POST /v1/chat/completions HTTP/1.1", b'{"a":1}')
    assert {"authorization": "Bearer key-of-mine", "x-call": "7"}.items() <= request.headers.items()


@each("engine", ENGINES)
async def test_a_connection_whose_body_ends_soon_is_used_again_after_draining(engine: str) -> None:
    async def script(_: Request, connection: Connection) -> None:
        await connection.send(HEAD + piece(b"a"))
        await asyncio.sleep(0.01)
        await connection.send(piece(b"b") + END)

    async with Server(script) as server, transport_of(engine, server.url) as transport:
        for _ in range(3):
            stream = await transport.stream(PATH, b"{}")
            assert await stream.read() == b"a"
            await stream.drain(PATIENCE)
            await stream.aclose()
    assert (len(server.requests), len(server.connections)) == (3, 1)


@each("then", [hang, always(b"5\r\nab"), always(b"nonsense\r\n")])
@each("engine", ENGINES)
async def test_draining_gives_a_body_up_that_does_not_end(engine: str, then: Script) -> None:
    read = asyncio.Event()

    async def script(request: Request, connection: Connection) -> None:
        await begun(always())(request, connection)
        await read.wait()
        await then(request, connection)
        await connection.hang()

    async with Server(script) as server, transport_of(engine, server.url) as transport:
        stream = await transport.stream(PATH, b"{}")
        await stream.read()
        read.set()
        await stream.drain(0.02)
        await gone(server)


@each("tls", [False, True])
@each("engine", ENGINES)
async def test_leaving_early_is_seen_by_the_server(engine: str, tls: bool) -> None:
    async with Server(begun(), tls=tls) as server, transport_of(engine, server.url, trusted=tls) as transport:
        streams = [await transport.stream(PATH, b"{}") for _ in range(4)]
        for number, stream in enumerate(streams):
            if number % 2:
                await stream.read()
            await stream.aclose()
            await gone(server, number)
            await stream.aclose()


@each("engine", ENGINES)
async def test_a_stream_closed_by_another_task_wakes_its_reader_with_an_error(engine: str) -> None:
    async with Server(begun()) as server, transport_of(engine, server.url) as transport:
        stream = await transport.stream(PATH, b"{}")
        await stream.read()
        reader = asyncio.create_task(stream.read())
        await asyncio.sleep(0.01)
        await stream.aclose()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(TransportError):
                await reader
        await gone(server)


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


@each("engine", ENGINES)
async def test_a_body_that_is_packed_is_unpacked(engine: str) -> None:
    packed = answer(gzip.compress(b"data: 1\n\n" * 100), content_encoding="gzip")
    async with Server(always(packed)) as server, transport_of(engine, server.url) as transport:
        assert await rest_of(await transport.stream(PATH, b"{}")) == b"data: 1\n\n" * 100


@each("streamed", [False, True])
async def test_closing_the_transport_ends_what_is_still_arriving(streamed: bool) -> None:
    """aiohttp by itself would let its reader wait for ever. A client of the user's own stays open, and its streams with it."""
    async with Server(begun()) as server, transport_of("aiohttp", server.url) as transport:
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


async def test_after_streams_left_at_random_every_answer_still_belongs_to_its_request() -> None:
    seed = 1
    dice = random.Random(seed)

    async def echo(request: Request, connection: Connection) -> None:
        await connection.send(HEAD)
        for _ in range(4):
            await asyncio.sleep(dice.choice([0, 0, 0.001]))
            await connection.send(piece(request.body))
        await connection.send(END)

    async def ask(transport: Any, number: int, pieces: int) -> None:
        body = b"<%d>" % number
        stream = await transport.stream(PATH, body)
        try:
            read = await stream.read() if pieces == 1 else await rest_of(stream) if pieces else b""
            assert read.replace(body, b"") == b"", f"seed {seed}"
        finally:
            await (stream.drain(0.01) if dice.random() < 0.3 else stream.aclose())

    async with Server(echo) as server, transport_of("aiohttp", server.url) as transport:
        for wave in range(20):
            tasks = [asyncio.create_task(ask(transport, wave * 1000 + number, dice.choice([0, 1, 9]))) for number in range(40)]
            for task in tasks:
                if dice.random() < 0.3:
                    asyncio.get_running_loop().call_later(dice.random() * 0.03, task.cancel)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            wrong = [outcome for outcome in outcomes if outcome is not None and not isinstance(outcome, asyncio.CancelledError)]
            assert not wrong, f"seed {seed}: {wrong[:3]}"
        await asyncio.gather(*(ask(transport, 10**6 + number, 9) for number in range(100)))
        assert not transport._session.connector._acquired, f"seed {seed}: connections left in use"  # type: ignore[attr-defined]
