"""What every engine must make of a peer that breaks, lies or goes away: an error that tells what may be done, and never a wrong answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from shared_tools import PATIENCE, completion, each
from transport_server import ENGINES, PATH, WAYS, Connection, Request, Server, always, answer, send, transport_of

from qreward import QRewardClient
from qreward.codecs.base import TransportError
from qreward.integrations.openai import async_openai_client
from qreward.settings.policies import Endpoint, Timeouts

OK = answer(completion())


def _half(_: Request, connection: Connection) -> Any:
    return connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 50)


async def _truncated(request: Request, connection: Connection) -> None:
    await _half(request, connection)
    connection.writer.close()


async def _truncated_chunk(_: Request, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n64\r\n" + b"x" * 50)
    connection.writer.close()


async def _missing_last_chunk(_: Request, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
    connection.writer.close()


async def _reset_in_body(request: Request, connection: Connection) -> None:
    await _half(request, connection)
    await asyncio.sleep(0.02)  # a reset overtakes what is still on its way
    connection.reset()


async def _reset(_: Request, connection: Connection) -> None:
    connection.reset()


async def _closed(_: Request, connection: Connection) -> None:
    connection.writer.close()


BREAKS = [_truncated, _truncated_chunk, _missing_last_chunk, _reset_in_body, _reset, _closed]


@each("engine, script", itertools.product(ENGINES, BREAKS))
async def test_a_connection_that_breaks_is_an_error_that_the_request_may_have_been_processed(engine: str, script: Any) -> None:
    found = []
    async with Server(script) as server, transport_of(engine, server.url) as transport:
        for way in (*WAYS, "stream"):
            with pytest.raises(TransportError) as caught:
                await send(transport, way)
            found.append(caught.value)
    assert {(error.sent, error.timeout, error.local, error.malformed) for error in found} == {(True, False, False, False)}
    assert [error.__context__ for error in found] == [None] * 4
    assert len({str(error) for error in found}) == 1, "it is told in one way only"
    assert sum(request.line.startswith("POST") for request in server.requests) == 3, "a POST is never sent again"


async def _endless_headers(_: Request, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\n")
    for number in itertools.count():
        await connection.send(b"x-%d: %s\r\n" % (number, b"y" * 1000))


async def _endless_line(_: Request, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        await connection.send(b"y" * 10_000)


async def _second_status(_: Request, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n")
    await asyncio.sleep(0.05)  # the client is reading the body by now
    await connection.send(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\n{}")


_NOT_HTTP = {
    "endless headers": _endless_headers,
    "endless line": _endless_line,
    "another protocol": always(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "bad length": always(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n{}"),
    "bad chunk": always(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\nwhat\r\n"),
    "second status": _second_status,
    "wrong encoding": always(answer(b"{}", content_encoding="gzip")),
}


_REASONS = {
    "endless headers": ("Too many headers received", "Receive buffer too long"),
    "endless line": ("Got more than 32768 bytes", "Receive buffer too long"),
    "another protocol": ("Bad status line", "illegal status line"),
    "bad length": ("Invalid character in Content-Length", "bad Content-Length"),
    "bad chunk": ("Invalid character in chunk size", "illegal chunk header"),
    "second status": ("Invalid character in chunk size", "illegal chunk header"),
    "wrong encoding": ("Can not decode content-encoding: gzip", "incorrect header check"),
}


@each("engine, kind, way", itertools.product(ENGINES, _NOT_HTTP, WAYS))
async def test_what_is_not_http_is_malformed_and_never_a_status_that_was_not_sent(engine: str, kind: str, way: str) -> None:
    async with Server(_NOT_HTTP[kind]) as server, transport_of(engine, server.url) as transport:
        with pytest.raises(TransportError) as caught:
            await send(transport, way)
        assert (caught.value.malformed, caught.value.sent) == (True, True)
        assert "400" not in str(caught.value)
        assert _REASONS[kind][engine != "aiohttp"] in str(caught.value)
        assert "SSH" not in str(caught.value)


_BROKEN_BODIES: dict[str, Any] = {
    "wrong encoding": lambda status: always(answer(b"{}", status=status, content_encoding="gzip", retry_after="7")),
    "cut off": lambda status: _cut(answer(b"x" * 100, status=status, retry_after="7")[:-50]),
}


def _cut(data: bytes) -> Any:
    async def script(_: Request, connection: Connection) -> None:
        await connection.send(data)
        connection.writer.close()

    return script


@each("engine, kind, status, way", itertools.product(ENGINES, _BROKEN_BODIES, (307, 429), ("post", "get", "stream")))
async def test_a_status_counts_even_if_its_body_breaks_off_or_cannot_be_decoded(engine: str, kind: str, status: int, way: str) -> None:
    async with Server(_BROKEN_BODIES[kind](status)) as server, transport_of(engine, server.url) as transport:
        if way == "stream":
            reply = await (await transport.begin("POST", PATH, b"{}", None)).read_whole(1000)
        else:
            reply = await send(transport, way)
        assert (reply.status, reply.headers.get("retry-after")) == (status, "7")


async def test_an_early_refusal_of_a_large_body_is_kept_and_the_body_is_not_sent_again() -> None:
    received, connections = 0, 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received, connections
        connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 40000000" in head.lower()
        writer.write(answer({"error": {"message": "too large"}}, status=413, connection="close"))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        received += len(reader._buffer)  # type: ignore[attr-defined]
        writer.close()

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener, transport_of("aiohttp", f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1") as transport:
        reply = await transport.post(PATH, b"x" * 40_000_000)
    assert (reply.status, b"too large" in reply.body) == (413, True)
    assert received < 4_000_000
    assert connections == 1


async def test_after_a_break_on_a_connection_that_was_used_before_the_next_request_opens_a_fresh_one() -> None:
    """The server, or something before it, has forgotten the connections of a burst, and resets each one that is used."""
    for way, break_on in itertools.product(("post", "stream"), (_reset, _reset_in_body)):
        forgotten: set[int] = set()

        async def script(request: Request, connection: Connection, break_on: Any = break_on, forgotten: set[int] = forgotten) -> None:
            if connection.number in forgotten:
                await break_on(request, connection)
                return
            await server.until(8)
            await connection.send(OK)

        async with Server(script) as server, transport_of("aiohttp", server.url) as transport:
            await asyncio.gather(*(transport.post(PATH, b"{}") for _ in range(8)))
            forgotten.update(range(8))
            with pytest.raises(TransportError):
                await send(transport, way)
            assert (await send(transport, way)).status == 200, way
            assert len(server.connections) == 9


@each("engine", ENGINES)
async def test_a_post_on_a_stale_connection_reaches_the_server_once(engine: str) -> None:
    async def script(request: Request, connection: Connection) -> None:
        if request.body == b'"stale"':
            connection.writer.close()
        else:
            await connection.send(OK)

    async with Server(script) as server, transport_of(engine, server.url) as transport:
        await transport.post(PATH, b'"first"')
        with pytest.raises(TransportError) as caught:
            await transport.post(PATH, b'"stale"')
        assert caught.value.sent
        await transport.post(PATH, b'"last"')
        assert [request.body for request in server.requests] == [b'"first"', b'"stale"', b'"last"']


STRAYS = {
    "a whole answer": answer(completion("nobody asked")),
    "an empty line": b"\r\n",
    "the beginning of an answer": b"HTTP/1.1 200 O",
    "a cut answer": answer(completion("nobody asked"))[:-3],
}


async def _echo(request: Request, connection: Connection, stray: bytes = b"") -> None:
    await connection.send(answer({"for": request.json["id"]}) + stray)


async def test_a_second_answer_in_the_same_write_is_never_given_to_the_next_request() -> None:
    """httpx gives it to the next request (its defect), so only the default engine is held to this."""
    wrong = []
    for (name, stray), way in itertools.product(STRAYS.items(), ("post", "stream")):
        async with Server(partial(_echo, stray=stray)) as server, transport_of("aiohttp", server.url) as transport:
            for number in range(5):
                reply = await send(transport, way, b'{"id": %d}' % number)
                if reply.body != b'{"for": %d}' % number:
                    wrong.append((name, way, reply.body))
    assert wrong == []


@each("engine, tls, kind, seen", itertools.product(ENGINES, (False, True), STRAYS, (False, True)))
async def test_a_connection_on_which_anything_arrived_while_it_was_idle_is_not_used_again(
    engine: str, tls: bool, kind: str, seen: bool
) -> None:
    """Whether the event loop has seen the bytes, or was kept busy and has not."""
    settings: dict[str, Any] = {"timeouts": Timeouts(read=PATIENCE)}
    async with Server(_echo, tls=tls) as server, transport_of(engine, server.url, trusted=tls, **settings) as transport:
        for number, way in enumerate(("post", "stream", "post")):
            reply = await send(transport, way, b'{"id": %d}' % number)
            assert reply.body == b'{"for": %d}' % number, way
            await server.connections[-1].send(STRAYS[kind])
            for _ in range(4 * seen):
                await asyncio.sleep(0)
        assert len(server.connections) == 3


async def test_an_empty_line_on_an_idle_connection_costs_the_next_request_no_attempt() -> None:
    async with Server(_echo) as server, transport_of("aiohttp", server.url, timeouts=Timeouts(read=0.02)) as transport:
        for number in range(2):
            assert (await transport.post(PATH, b'{"id": %d}' % number)).status == 200
            await server.connections[-1].send(b"\r\n")
            await asyncio.sleep(0.05)


@each("way", ["call", "stream", "sdk"])
async def test_a_late_second_answer_is_given_to_no_call_stream_or_program_of_the_openai_sdk(way: str) -> None:
    async def script(request: Request, connection: Connection) -> None:
        await connection.send(answer(completion(request.json["messages"][0]["content"])))

    async with Server(script) as server, QRewardClient([Endpoint(server.url, models=["judge-7b"], proxy="")]) as client:
        sdk = async_openai_client(client, hedge=False)
        for number in range(3):
            messages: Any = [{"role": "user", "content": f"question {number}"}]
            if way == "stream":
                text: str | None = "".join([token async for token in client.stream_chat_completion(messages, "judge-7b")])
            else:
                ask = client.chat_completion if way == "call" else sdk.chat.completions.create
                text = (await ask(messages=messages, model="judge-7b")).choices[0].message.content
            assert text == f"question {number}"
            await server.connections[-1].send(STRAYS["a whole answer"])
            await asyncio.sleep(0.02)
        assert (len(server.requests), len(server.connections)) == (3, 3)


@each("seed, tls, streamed", [(1, False, False), (2, True, False), (3, False, True)])
async def test_after_random_cancels_every_answer_still_belongs_to_its_request(seed: int, tls: bool, streamed: bool) -> None:
    dice = random.Random(seed)

    async def echo(request: Request, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(4):
            await asyncio.sleep(dice.choice([0, 0, 0.001]))
            await connection.send(b"%x\r\n%s\r\n" % (len(request.body), request.body))
        await connection.send(b"0\r\n\r\n")

    async def ask(transport: Any, number: int) -> None:
        body = b"<%d>" % number
        if not streamed:
            assert (await transport.post(PATH, body)).body == body * 4, f"seed {seed}"
            return
        stream = await transport.begin("POST", PATH, body, None)
        try:
            most, read = dice.choice([0, 1, 9]), b""
            while most and (data := await stream.read()):
                most, read = most - 1, read + data
            assert (body * 4).startswith(read), f"seed {seed}"
        finally:
            await (stream.drain(0.01) if dice.random() < 0.3 else stream.aclose())

    patient = Timeouts(connect=100.0)  # 40 handshakes at once take long on a busy machine
    async with Server(echo, tls=tls) as server, transport_of("aiohttp", server.url, trusted=tls, timeouts=patient) as transport:
        for wave in range(4 if tls else 8):
            tasks = [asyncio.create_task(ask(transport, wave * 1000 + number)) for number in range(40)]
            tasks[0].cancel()
            for task in tasks:
                if dice.random() < 0.6:
                    asyncio.get_running_loop().call_later(dice.random() * 0.03, task.cancel)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [each for each in outcomes if each is not None and not isinstance(each, asyncio.CancelledError)] == [], f"seed {seed}"
        await asyncio.gather(*(ask(transport, 10**6 + number) for number in range(40)))
        assert not transport._session.connector._acquired, f"seed {seed}: connections left in use"  # type: ignore[attr-defined]


@each("engine, way", itertools.product(ENGINES, WAYS))
async def test_a_port_that_is_not_listened_on_was_certainly_not_reached(engine: str, way: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        async with transport_of(engine, f"http://127.0.0.1:{taken.getsockname()[1]}/v1", api_key="key-of-mine") as transport:
            with pytest.raises(TransportError, match="no connection") as caught:
                await send(transport, way)
            assert (caught.value.sent, caught.value.local, caught.value.__cause__, caught.value.__context__) == (False, False, None, None)


def test_the_same_endpoint_serves_two_loops_one_after_the_other_and_a_forked_child() -> None:
    """In a process of its own: a fork of the test process would take its threads' locks along."""
    script = Path(__file__).with_name("fork_script.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE * 6,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "first ok\nsecond ok\nchild ok\n", "")
