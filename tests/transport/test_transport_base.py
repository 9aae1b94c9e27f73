"""What every HTTP library must get right on a healthy connection: requests, responses, streams, cancellation, limits, TLS, redirects."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from typing import Any

import httpx
import httpx2
import pytest
from shared_tools import PATIENCE, completion, each
from stream_tools import begun
from transport_server import (
    CERTIFICATE,
    ENGINES,
    PATH,
    WAYS,
    Connection,
    Request,
    Script,
    Server,
    always,
    answer,
    hang,
    rest_of,
    send,
    transport_of,
)

from qreward.codecs.base import TransportError
from qreward.errors import ConfigError
from qreward.settings.policies import Endpoint, Timeouts
from qreward.transport.backend import open_transport
from qreward.transport.connection_settings import request_headers

OK = answer(completion())
MEGABYTES = bytes(range(256)) * 12_000


@each("engine, way", itertools.product(ENGINES, WAYS))
async def test_a_request_carries_body_key_and_headers_and_brings_back_status_headers_and_body(engine: str, way: str) -> None:
    script = always(answer(b"up 1\n" * 50_000, status=418, x_request_id="r-1", x_long="y" * 20_000))
    async with Server(script) as server, transport_of(engine, server.url, api_key="key-of-mine", headers={"X-Team": "red"}) as transport:
        reply = await send(transport, way, b'{"model":"m"}', {"X-Team": "blue", "X-Call": "7"})
        await send(transport, way, MEGABYTES)
    assert (reply.status, reply.body, reply.headers.get("X-Request-ID")) == (418, b"up 1\n" * 50_000, "r-1")
    assert len(reply.headers.get("x-long") or "") == 20_000
    request, large = server.requests
    assert large.body == (b"" if way == "get" else MEGABYTES)
    method, body = ("GET", b"") if way == "get" else ("POST", b'{"model":"m"}')
    assert (request.line, request.body) == (f"{method} /v1/chat/completions HTTP/1.1", body)
    expected = {"authorization": "Bearer key-of-mine", "accept-encoding": "identity", "x-team": "blue", "x-call": "7"}
    assert (expected | ({} if way == "get" else {"content-type": "application/json"})).items() <= request.headers.items()


def test_a_header_of_the_endpoint_takes_the_place_of_a_default_one_however_its_name_is_written() -> None:
    own = {"authorization": "Token of-mine", "USER-AGENT": "trainer", "Accept": "*/*", "X-Team": "red"}
    sent = request_headers(Endpoint("http://judge.example/v1", api_key="key-of-mine", headers=own))
    assert sent == own | {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@each("engine", ENGINES)
async def test_a_connection_is_used_again_by_all_requests_and_the_default_engine_sends_no_cookie_back(engine: str) -> None:
    script = always(answer(completion(), set_cookie="session=1; path=/"))
    async with Server(script) as server, transport_of(engine, server.url) as transport:
        for way in (*WAYS, *WAYS):
            await send(transport, way)
    assert len(server.connections) == 1
    if engine == "aiohttp":
        assert all("cookie" not in request.headers for request in server.requests)


@each("engine, tls, begun", itertools.product(ENGINES, [False, True], [False, True]))
async def test_a_cancel_before_the_answer_and_in_the_middle_of_its_body_is_seen_by_the_server(engine: str, tls: bool, begun: bool) -> None:
    async def script(request: Request, connection: Connection) -> None:
        if begun:
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await hang(request, connection)

    async with Server(script, tls=tls) as server, transport_of(engine, server.url, trusted=tls) as transport:
        tasks = [asyncio.create_task(send(transport, way)) for way in (*WAYS, *WAYS)]
        await server.until(len(tasks))
        await asyncio.sleep(0.02 if begun else 0)  # let the beginning arrive
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(connection.gone.wait() for connection in server.connections))


async def test_no_pool_limits_how_many_requests_are_in_flight_to_an_endpoint() -> None:
    everyone = 300  # three times what aiohttp allows by default

    async def script(_: Request, connection: Connection) -> None:
        await server.until(everyone)
        await connection.send(OK)

    async with Server(script) as server, transport_of("aiohttp", server.url) as transport:
        replies = await asyncio.gather(*(transport.post(PATH, b"{}") for _ in range(everyone)))
        assert {reply.status for reply in replies} == {200}


@each("engine", ["httpx", "httpx2"])
async def test_waiting_for_a_connection_of_the_users_pool_counts_against_no_timeout(engine: str) -> None:
    """The pool has one connection, which is open and busy for as long as several of its time limits."""
    asked = asyncio.Event()

    async def slow(_: Request, connection: Connection) -> None:
        if asked.is_set():
            await asyncio.sleep(0.3)
        await connection.send(OK)

    package = pytest.importorskip(engine)
    async with (
        Server(slow) as server,
        package.AsyncClient(limits=package.Limits(max_connections=1), timeout=0.1, trust_env=False) as client,
    ):
        await open_transport(Endpoint(server.url, http_client=client)).post(PATH, b"{}")
        asked.set()
        transport = open_transport(Endpoint(server.url, http_client=client, timeouts=Timeouts(connect=0.1)))
        replies = await asyncio.gather(*(transport.post(PATH, b"{}") for _ in range(3)))
        assert {reply.status for reply in replies} == {200}
    assert len(server.connections) == 1


@each("engine, way, beginning", itertools.product(ENGINES, WAYS, [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"]))
async def test_silence_beyond_timeouts_read_is_a_timeout_after_sending(engine: str, way: str, beginning: bytes) -> None:
    async def script(request: Request, connection: Connection) -> None:
        await connection.send(beginning)
        await hang(request, connection)

    async with Server(script) as server, transport_of(engine, server.url, timeouts=Timeouts(read=0.05)) as transport:
        with pytest.raises(TransportError) as caught:
            await send(transport, way)
        assert (caught.value.timeout, caught.value.sent) == (True, True)
        if way == "stream" and not beginning:
            async with asyncio.timeout(PATIENCE):
                await server.connections[0].gone.wait()


def _chunked(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


LONG = {
    "announced, at its first byte": b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n{",
    "announced": b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n" + b"x" * 2000,
    "endless": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000 + b"\r\n",
    "whole": answer(b"x" * 2000),
    "chunked": _chunked(b"x" * 2000),
    "in pieces": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + 10 * (b"c8\r\n" + b"x" * 200 + b"\r\n") + b"0\r\n\r\n",
    "packed": answer(gzip.compress(b"x" * 100_000), content_encoding="gzip"),
}


@each(
    "engine, way, kind",
    [
        *(("aiohttp", "post", kind) for kind in LONG),
        *itertools.product(["httpx", "httpx2"], ["post"], [kind for kind in LONG if "first byte" not in kind]),
        *itertools.product(ENGINES, ["get"], ["whole", "in pieces"]),
    ],
)
async def test_an_answer_longer_than_max_response_bytes_is_refused_and_not_read_to_its_end(engine: str, way: str, kind: str) -> None:
    async def script(request: Request, connection: Connection) -> None:
        await connection.send(LONG[kind])
        await hang(request, connection)

    async with Server(script) as server, transport_of(engine, server.url, max_response_bytes=1000) as transport:
        with pytest.raises(TransportError, match="max_response_bytes") as caught:
            await send(transport, way)
        assert caught.value.malformed
        if kind in ("announced", "endless"):
            async with asyncio.timeout(PATIENCE):
                await server.connections[0].gone.wait()


@each("way, kind", [*itertools.product(["post"], ["plain", "chunked", "packed"]), ("stream", "packed")])
@each("engine", ENGINES)
async def test_an_answer_as_long_as_max_response_bytes_is_read(engine: str, way: str, kind: str) -> None:
    body = b"x" * 200_000
    out = {"plain": answer(body), "chunked": _chunked(body), "packed": answer(gzip.compress(body), content_encoding="gzip")}[kind]
    async with Server(always(out)) as server, transport_of(engine, server.url, max_response_bytes=len(body)) as transport:
        assert (await send(transport, way)).body == body


async def test_a_certificate_is_verified_unless_that_is_switched_off_or_it_is_in_the_given_bundle() -> None:
    async with Server(always(OK), tls=True) as server:
        for engine in ENGINES:
            async with transport_of(engine, server.url) as transport:
                with pytest.raises(TransportError, match="TLS") as caught:
                    await transport.post(PATH, b"{}")
                assert caught.value.sent is False
        assert server.requests == []
        for verify in (False, str(CERTIFICATE)):
            transport = open_transport(Endpoint(server.url, verify=verify, proxy=""))
            assert (await transport.post(PATH, b"{}")).status == 200
            await transport.aclose()


def test_a_bundle_that_cannot_be_read_is_a_configuration_error(tmp_path: Any) -> None:
    for path in (tmp_path / "missing.pem", __file__):
        with pytest.raises(ConfigError, match="verify names a CA bundle that cannot be read"):
            open_transport(Endpoint("https://127.0.0.1", verify=str(path)))


@each("engine, follows", [*((engine, False) for engine in ENGINES), ("httpx", True)])
async def test_a_redirect_is_handed_back_and_the_key_goes_nowhere_else(engine: str, follows: bool) -> None:
    async with Server(always(OK)) as other:
        redirect = always(answer(b"", status=307, location=f"{other.url}/elsewhere?token=abc"))
        async with Server(redirect) as server, transport_of(engine, server.url, api_key="k" * 20) as transport:
            if follows:
                transport._client.follow_redirects = True  # type: ignore[attr-defined]
            assert [(await send(transport, way)).status for way in WAYS] == [307] * 3
            assert len(server.requests) == 3
    assert other.requests == []


@each("engine, way", itertools.product(ENGINES, WAYS))
async def test_nothing_is_sent_after_closing(engine: str, way: str) -> None:
    async with Server(always(OK)) as server, transport_of(engine, server.url) as transport:
        await send(transport, way)
        await transport.aclose()
        with pytest.raises(TransportError, match="closed") as caught:
            await send(transport, way)
        assert caught.value.sent is False
    assert len(server.requests) == 1


@each("streamed, script", [(False, hang), (False, begun(b"data: 1\n\n", hang)), (True, begun(b"data: 1\n\n", hang))])
async def test_closing_the_transport_ends_what_is_still_arriving(streamed: bool, script: Script) -> None:
    """aiohttp by itself would let its reader wait for ever. A client of the user's own stays open, and its streams with it."""
    async with Server(script) as server, transport_of("aiohttp", server.url) as transport:
        ask = (await transport.begin("POST", PATH, b"{}", None)).read if streamed else lambda: transport.post(PATH, b"{}")
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
        stream = await open_transport(Endpoint(server.url, http_client=client)).begin("POST", PATH, b"{}", None)
        assert (stream.status, stream.headers.get("retry-after"), await rest_of(stream)) == (429, "7", b"full" if reads else b"")
        await stream.aclose()
