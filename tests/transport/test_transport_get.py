"""What every engine must get right of a GET: it is asked with the endpoint's headers, read to its end, and cut at the cap."""

from __future__ import annotations

import asyncio

import pytest
from shared_tools import PATIENCE, each
from transport_server import ENGINES, Connection, Request, Server, always, answer, hang, transport_of

from qreward.codecs.base import TransportError

PATH = "/metrics"


@each("engine", ENGINES)
async def test_a_get_carries_key_and_headers_and_no_body_and_brings_back_status_headers_and_body(engine: str) -> None:
    script = always(answer(b"up 1\n" * 50_000, status=207, x_request_id="r-1"))
    async with (
        Server(script) as server,
        transport_of(engine, server.url, api_key="key-of-mine", headers={"X-Team": "red"}) as transport,
    ):
        reply = await transport.get(PATH, {"X-Look": "7"})
        assert (reply.status, len(reply.body), reply.headers.get("X-Request-ID")) == (207, 250_000, "r-1")
    (request,) = server.requests
    assert request.line == "GET /v1/metrics HTTP/1.1"
    assert request.body == b""
    assert {"authorization": "Bearer key-of-mine", "x-team": "red", "x-look": "7"}.items() <= request.headers.items()


@each("engine", ENGINES)
async def test_gets_and_posts_share_a_connection(engine: str) -> None:
    async with Server(always(answer(b"{}"))) as server, transport_of(engine, server.url) as transport:
        await transport.get(PATH)
        await transport.post(PATH, b"{}")
        await transport.get(PATH)
    assert len(server.connections) == 1


@each("engine", ENGINES)
async def test_a_get_that_is_cancelled_is_seen_by_the_server(engine: str) -> None:
    async def script(request: Request, connection: Connection) -> None:
        if len(server.requests) > 1:
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")  # one before its answer, one amid it
        await hang(request, connection)

    async with Server(script) as server, transport_of(engine, server.url) as transport:
        for count in (1, 2):
            task = asyncio.create_task(transport.get(PATH))
            await server.until(count)
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(connection.gone.wait() for connection in server.connections))


@each("engine", ENGINES)
async def test_a_get_of_more_than_max_response_bytes_is_refused(engine: str) -> None:
    async with Server(always(answer(b"x" * 2000))) as server, transport_of(engine, server.url, max_response_bytes=1000) as transport:
        with pytest.raises(TransportError, match="max_response_bytes") as caught:
            await transport.get(PATH)
        assert caught.value.malformed


@each("engine", ENGINES)
async def test_a_get_is_not_redirected_and_the_key_stays_at_home(engine: str) -> None:
    async with Server(always(answer(b"{}"))) as other:
        moved = answer(b"", status=302, location=f"{other.url}/elsewhere")
        async with Server(always(moved)) as server, transport_of(engine, server.url, api_key="k" * 20) as transport:
            assert (await transport.get(PATH)).status == 302
    assert other.requests == []


@each("engine", ENGINES)
async def test_where_nobody_is_or_after_closing_a_get_was_not_sent(engine: str) -> None:
    async with Server(always(answer(b"{}"))) as server:
        url = server.url
    async with transport_of(engine, url, api_key="key-of-mine") as transport:
        with pytest.raises(TransportError, match="no connection") as caught:
            await transport.get(PATH)
        assert (caught.value.sent, caught.value.__context__) == (False, None)
        await transport.aclose()
        with pytest.raises(TransportError, match="closed"):
            await transport.get(PATH)
