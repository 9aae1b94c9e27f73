"""What every engine must get right on a healthy line: the bytes out, the bytes back, cancel, limits, TLS, redirects."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from shared_tools import PATIENCE, each
from transport_server import CERTIFICATE, ENGINES, Connection, Request, Server, always, answer, completion, hang, transport_of

from qreward.codecs.base import TransportError
from qreward.errors import ConfigError
from qreward.settings.policies import Endpoint, Timeouts
from qreward.transport.connection import open_transport

PATH = "/chat/completions"
OK = answer(completion())


@each("engine", ENGINES)
async def test_a_post_carries_body_key_and_headers_and_brings_back_status_headers_and_body(engine: str) -> None:
    script = always(answer(b'{"a": 1}', status=418, x_request_id="r-1"))
    async with (
        Server(script) as server,
        transport_of(engine, server.url, api_key="key-of-mine", headers={"X-Team": "red"}) as transport,
    ):
        reply = await transport.post(PATH, b'{"model":"m"}', {"X-Team": "blue", "X-Call": "7"})
        assert (reply.status, reply.body, reply.headers.get("X-Request-ID")) == (418, b'{"a": 1}', "r-1")
    (request,) = server.requests
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.body == b'{"model":"m"}'
    expected = {
        "authorization": "Bearer key-of-mine",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-team": "blue",
        "x-call": "7",
    }
    assert expected.items() <= request.headers.items()


@each("engine", ENGINES)
async def test_a_connection_is_used_again_and_the_default_engine_sends_no_cookie_back(engine: str) -> None:
    async with (
        Server(always(answer(completion(), set_cookie="session=1; path=/"))) as server,
        transport_of(engine, server.url) as transport,
    ):
        for _ in range(3):
            await transport.post(PATH, b"{}")
    assert len(server.connections) == 1
    if engine == "aiohttp":
        assert all("cookie" not in request.headers for request in server.requests)


@each("tls", [False, True])
@each("engine", ENGINES)
async def test_a_cancelled_request_is_seen_by_the_server(engine: str, tls: bool) -> None:
    async with Server(hang, tls=tls) as server, transport_of(engine, server.url, trusted=tls) as transport:
        tasks = [asyncio.create_task(transport.post(PATH, b"{}")) for _ in range(8)]
        await server.until(8)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(connection.gone.wait() for connection in server.connections))


@each("engine", ENGINES)
async def test_a_cancel_in_the_middle_of_a_body_is_seen_by_the_server(engine: str) -> None:
    async def script(request: Request, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await hang(request, connection)

    async with Server(script) as server, transport_of(engine, server.url) as transport:
        task = asyncio.create_task(transport.post(PATH, b"{}"))
        await server.until(1)
        await asyncio.sleep(0.02)  # let the beginning arrive
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(PATIENCE):
            await server.connections[0].gone.wait()


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
    async def slow(_: Request, connection: Connection) -> None:
        await asyncio.sleep(0.05)
        await connection.send(OK)

    package = pytest.importorskip(engine)
    async with (
        Server(slow) as server,
        package.AsyncClient(limits=package.Limits(max_connections=1), timeout=0.01, trust_env=False) as client,
    ):
        transport = open_transport(Endpoint(server.url, http_client=client, timeouts=Timeouts(connect=0.02)))
        replies = await asyncio.gather(*(transport.post(PATH, b"{}") for _ in range(4)))
        assert {reply.status for reply in replies} == {200}
    assert len(server.connections) == 1


@each("engine", ENGINES)
async def test_an_answer_that_trickles_in_is_read_to_its_end(engine: str) -> None:
    async def trickle(_: Request, connection: Connection) -> None:
        for byte in answer(b'{"slow": true}'):
            await connection.send(bytes([byte]))
            await asyncio.sleep(0)

    async with Server(trickle) as server, transport_of(engine, server.url) as transport:
        assert (await transport.post(PATH, b"{}")).body == b'{"slow": true}'


@each("engine", ENGINES)
async def test_silence_beyond_timeouts_read_is_a_timeout_after_sending(engine: str) -> None:
    async with Server(hang) as server, transport_of(engine, server.url, timeouts=Timeouts(read=0.05)) as transport:
        with pytest.raises(TransportError) as caught:
            await transport.post(PATH, b"{}")
        assert (caught.value.timeout, caught.value.sent) == (True, True)


def _chunked(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


LONG = {
    "announced": b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n" + b"x" * 2000,
    "endless": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000 + b"\r\n",
    "whole": answer(b"x" * 2000),
    "chunked": _chunked(b"x" * 2000),
    "packed": answer(gzip.compress(b"x" * 100_000), content_encoding="gzip"),
}


@each("kind", LONG)
@each("engine", ENGINES)
async def test_an_answer_longer_than_max_response_bytes_is_refused_and_not_read_to_its_end(engine: str, kind: str) -> None:
    async def script(request: Request, connection: Connection) -> None:
        await connection.send(LONG[kind])
        await hang(request, connection)

    async with Server(script) as server, transport_of(engine, server.url, max_response_bytes=1000) as transport:
        with pytest.raises(TransportError, match="max_response_bytes") as caught:
            await transport.post(PATH, b"{}")
        assert caught.value.malformed
        if kind in ("announced", "endless"):
            async with asyncio.timeout(PATIENCE):
                await server.connections[0].gone.wait()


async def test_an_answer_announced_as_too_long_is_refused_at_its_first_byte() -> None:
    async def script(request: Request, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n{")
        await hang(request, connection)

    async with Server(script) as server, transport_of("aiohttp", server.url, max_response_bytes=1000) as transport:
        with pytest.raises(TransportError, match="max_response_bytes"):
            await transport.post(PATH, b"{}")


@each("kind", ["plain", "chunked", "packed"])
@each("engine", ENGINES)
async def test_an_answer_as_long_as_max_response_bytes_is_read(engine: str, kind: str) -> None:
    body = b"x" * 200_000
    out = {"plain": answer(body), "chunked": _chunked(body), "packed": answer(gzip.compress(body), content_encoding="gzip")}[kind]
    async with Server(always(out)) as server, transport_of(engine, server.url, max_response_bytes=len(body)) as transport:
        assert (await transport.post(PATH, b"{}")).body == body


@each("engine", ENGINES)
async def test_a_body_of_megabytes_arrives_whole(engine: str) -> None:
    async with Server(always(OK)) as server, transport_of(engine, server.url) as transport:
        body = bytes(range(256)) * 12_000
        await transport.post(PATH, body)
        assert server.requests[0].body == body


@each("engine", ENGINES)
async def test_a_certificate_that_nobody_vouches_for_is_refused(engine: str) -> None:
    async with Server(always(OK), tls=True) as server, transport_of(engine, server.url) as transport:
        with pytest.raises(TransportError, match="TLS") as caught:
            await transport.post(PATH, b"{}")
        assert caught.value.sent is False
    assert server.requests == []


@each("verify", [False, str(CERTIFICATE)])
async def test_verification_can_be_switched_off_or_given_a_bundle(verify: bool | str) -> None:
    async with Server(always(OK), tls=True) as server:
        transport = open_transport(Endpoint(server.url, verify=verify, proxy=""))
        assert (await transport.post(PATH, b"{}")).status == 200
        await transport.aclose()


def test_a_bundle_that_cannot_be_read_is_a_configuration_error(tmp_path: Any) -> None:
    for path in (tmp_path / "missing.pem", __file__):
        with pytest.raises(ConfigError, match="verify names a CA bundle that cannot be read"):
            open_transport(Endpoint("https://127.0.0.1", verify=str(path)))


@each("engine", [*ENGINES, "httpx following redirects"])
async def test_a_redirect_is_handed_back_and_the_key_stays_at_home(engine: str) -> None:
    async with Server(always(OK)) as other:
        redirect = answer(b"", status=307, location=f"{other.url}/elsewhere?token=abc")
        async with (
            Server(always(redirect)) as server,
            transport_of(engine.split(" ", maxsplit=1)[0], server.url, api_key="k" * 20) as transport,
        ):
            if "following" in engine:
                transport._client.follow_redirects = True  # type: ignore[attr-defined]
            reply = await transport.post(PATH, b"{}")
            assert reply.status == 307
            assert len(server.requests) == 1
    assert other.requests == []


@each("engine", ENGINES)
async def test_nothing_is_sent_after_closing(engine: str) -> None:
    async with Server(always(OK)) as server, transport_of(engine, server.url) as transport:
        await transport.post(PATH, b"{}")
        await transport.aclose()
        with pytest.raises(TransportError, match="closed") as caught:
            await transport.post(PATH, b"{}")
        assert caught.value.sent is False
    assert len(server.requests) == 1
