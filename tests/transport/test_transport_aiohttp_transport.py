"""The default engine's own rules: opening connections, descriptors, proxies, and the private hook of aiohttp that we rely on."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import inspect
import socket
import ssl
import sys
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from shared_tools import PATIENCE, completion, each
from transport_server import Connection, Request, Server, always, answer, transport_of

from qreward import QRewardClient
from qreward.codecs.base import TransportError
from qreward.errors import ConfigError
from qreward.settings.policies import Endpoint, Timeouts
from qreward.testing import FakeEndpoint, FakeFleet, Latency
from qreward.testing.virtual_time import run_in_virtual_time
from qreward.transport import aiohttp_transport
from qreward.transport.aiohttp_transport import AiohttpTransport, GatedConnector, translate

PATH = "/chat/completions"
OK = answer(completion())
_create_connection = aiohttp.TCPConnector._create_connection


def test_the_private_hooks_of_aiohttp_that_limit_new_connections_and_check_idle_ones_are_still_there() -> None:
    hooks = {"_create_connection": ["req", "traces", "timeout"], "_get": ["key", "traces"], "_release": ["key", "protocol", "should_close"]}
    found = {name: list(inspect.signature(getattr(aiohttp.BaseConnector, name)).parameters)[1:] for name in hooks}
    assert found == hooks
    assert inspect.iscoroutinefunction(_create_connection)
    assert inspect.iscoroutinefunction(aiohttp.BaseConnector._get)


async def test_a_body_is_written_whole_whatever_its_size_and_a_small_one_without_an_asyncio_task() -> None:
    """On Python 3.11 ``DirectRequest`` sees to that; from 3.12 on, aiohttp does it itself."""
    sizes = (0, 1, aiohttp_transport._AT_ONCE, aiohttp_transport._AT_ONCE + 1, aiohttp_transport._LARGE, 4 * aiohttp_transport._LARGE)
    bodies = [b"x" * size for size in sizes]
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **settings: Any) -> asyncio.Task[Any]:
        made.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **settings)

    async with Server(always(OK)) as server, transport_of("aiohttp", server.url) as transport:
        await transport.post(PATH, b"first")
        for body in bodies:
            made.clear()
            asyncio.get_running_loop().set_task_factory(factory)
            reply = await transport.post(PATH, body)
            asyncio.get_running_loop().set_task_factory(None)
            assert reply.status == 200
            if len(body) <= aiohttp_transport._AT_ONCE and sys.version_info < (3, 12):
                assert not [name for name in made if "write_bytes" in name], len(body)
        assert [len(request.body) for request in server.requests] == [len(b"first"), *sizes]
        assert {request.headers["content-length"] for request in server.requests[1:]} == set(map(str, sizes))


async def test_without_a_parser_aiohttp_keeps_what_arrives_and_then_the_connection_is_to_be_closed() -> None:
    protocol = aiohttp.client_proto.ResponseHandler(asyncio.get_running_loop())
    protocol._parser = None
    assert not protocol.should_close
    protocol.data_received(b"\r\n")
    assert protocol.should_close


async def test_nothing_is_kept_of_responses_that_are_over() -> None:
    """Whole, refused as too long, or cut off: what is over need not be closed with the transport."""

    async def cut(_: Request, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        connection.reset()

    kept = {}
    for name, script in {"whole": always(OK), "too long": always(answer({"text": "x" * 5000})), "cut off": cut}.items():
        async with Server(script) as server, transport_of("aiohttp", server.url, max_response_bytes=2000) as transport:
            for _ in range(3):
                with suppress(TransportError):
                    await transport.post(PATH, b"{}")
                with suppress(TransportError):
                    await transport.get(PATH)
            assert isinstance(transport, AiohttpTransport)
            kept[name] = len(transport._arriving)
    assert kept == {"whole": 0, "too long": 0, "cut off": 0}


def test_waiting_for_ones_turn_to_connect_counts_against_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: Any) -> None:
        await asyncio.sleep(0.4)

    async def test() -> None:
        connector = GatedConnector(connect=0.5, keepalive=4.0, tls=True)
        unused: Any = None
        await asyncio.gather(*(connector._create_connection(unused, unused, unused) for _ in range(10)))
        assert round(asyncio.get_running_loop().time(), 3) == 4.0, "one after the other"
        await connector.close()

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", slow)
    monkeypatch.setattr(aiohttp_transport, "CONNECTS_AT_ONCE", 1)
    run_in_virtual_time(test())


async def test_an_idle_connection_is_closed_after_keepalive_seconds() -> None:
    async with Server(always(OK)) as server, transport_of("aiohttp", server.url, keepalive=0.05) as transport:
        await transport.post(PATH, b"{}")
        async with asyncio.timeout(PATIENCE):
            await server.connections[0].gone.wait()
        assert (await transport.post(PATH, b"{}")).status == 200


async def test_a_connection_that_does_not_open_in_time_was_certainly_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking up the name is part of it, which aiohttp's own limits leave out."""

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(aiohttp.TCPConnector, "_resolve_host", never)
    async with transport_of("aiohttp", "http://judge.example/v1", timeouts=Timeouts(connect=0.05)) as transport:
        with pytest.raises(TransportError, match=r"timeouts\.connect") as caught:
            await transport.post(PATH, b"{}")
        assert (caught.value.sent, caught.value.timeout) == (False, True)


async def test_a_connection_may_be_refused_by_our_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", full)
    async with transport_of("aiohttp", "http://127.0.0.1:1/v1") as transport:
        with pytest.raises(TransportError, match=r"\(Too many open files\); raise `ulimit -n`") as caught:
            await transport.post(PATH, b"{}")
        assert (caught.value.local, caught.value.sent) == (True, False)


def test_what_aiohttps_errors_mean() -> None:
    info: Any = None
    refused = aiohttp.ClientConnectorCertificateError(info, ssl.SSLCertVerificationError())
    table: list[tuple[Exception, dict[str, bool], str]] = [
        (aiohttp.ClientResponseError(info, (), status=400, message="bad"), {"malformed": True}, "ClientResponseError"),
        (aiohttp.SocketTimeoutError(), {"timeout": True}, "timeouts.read"),
        (aiohttp.ConnectionTimeoutError(), {"sent": False, "timeout": True}, "timeouts.connect"),
        (aiohttp.ServerDisconnectedError(), {}, "broke"),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), {}, "reset by peer"),
        (aiohttp.InvalidURL("http://x"), {"sent": False}, "InvalidURL"),
        (UnicodeError(), {"sent": False}, "UnicodeError"),
        (refused, {"sent": False}, "TLS certificate: refused"),
    ]
    for error, meant, words in table:
        found = translate(error)
        flags = {name: getattr(found, name) for name in ("sent", "timeout", "local", "malformed")}
        assert flags == {"sent": True, "timeout": False, "local": False, "malformed": False} | meant, repr(error)
        assert words in str(found)


async def test_a_server_that_does_not_speak_tls_is_told_so() -> None:
    def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, transport_of("aiohttp", f"https://127.0.0.1:{port}/v1") as transport:
        with pytest.raises(TransportError, match=r"does not speak TLS at this port\); write base_url with http://") as caught:
            await transport.post(PATH, b"{}")
        assert caught.value.sent is False


async def test_a_proxy_gets_the_whole_address_and_its_own_credentials_and_its_refusal_to_connect_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(request: Request, connection: Connection) -> None:
        if request.line.startswith("CONNECT"):
            await connection.send(answer(b"", status=407))
            connection.writer.close()
        else:
            await connection.send(OK)

    async with Server(script) as proxy:
        url = f"http://me:pass%20word@127.0.0.1:{proxy.port}"
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.delenv("no_proxy", raising=False)
        for settings in ({"proxy": url}, {}):  # by the setting, and by the environment
            transport = AiohttpTransport(Endpoint("http://judge.example/v1", **settings))  # type: ignore[arg-type]
            assert (await transport.post(PATH, b"{}")).status == 200
            await transport.aclose()
        assert [request.line for request in proxy.requests] == ["POST http://judge.example/v1/chat/completions HTTP/1.1"] * 2
        expected = "Basic " + base64.b64encode(b"me:pass word").decode()
        assert {request.headers["proxy-authorization"] for request in proxy.requests} == {expected}
        transport = AiohttpTransport(Endpoint("https://judge.example/v1", proxy=f"http://me:secretword@127.0.0.1:{proxy.port}"))
        with pytest.raises(TransportError, match="407") as caught:
            await transport.post(PATH, b"{}")
        await transport.aclose()
        assert caught.value.sent is False
        assert "secretword" not in str(caught.value)


@each("fault", ["refused", "407", "no such name", "no answer in time"])
async def test_a_proxy_that_cannot_be_used_is_named_as_the_cause_and_not_the_address_of_the_server(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(_: Any, host: str, *__: Any, **___: Any) -> Any:
        if fault == "no answer in time":
            await asyncio.Event().wait()
        raise OSError(errno.ENOENT, "no such name")

    async def refuse(_: Request, connection: Connection) -> None:
        await connection.send(answer(b"", status=407))
        connection.writer.close()

    if fault in ("no such name", "no answer in time"):
        monkeypatch.setattr(aiohttp.TCPConnector, "_resolve_host", resolve)
    async with Server(refuse) as proxy:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, not listening
            port = taken.getsockname()[1] if fault == "refused" else proxy.port
            settings: dict[str, Any] = {
                "proxy": f"http://127.0.0.1:{port}",
                "timeouts": Timeouts(connect=0.05 if "time" in fault else PATIENCE),
            }
            async with transport_of("aiohttp", "https://judge.example/v1", **settings) as transport:
                with pytest.raises(TransportError, match=r"check proxy, or HTTP_PROXY") as caught:
                    await transport.post(PATH, b"{}")
        assert caught.value.sent is False
        assert ("check base_url" in str(caught.value)) == (fault == "no answer in time")


V6, V4 = "http://[::1]:8000/v1", "http://10.1.2.3:8000/v1"


@each(
    "url, no_proxy, direct",
    [
        *((V6, entry, True) for entry in ("::1", "[::1]", "[::1]:8000", "::1/128", "localhost, ::/0", "0:0:0:0:0:0:0:1")),
        *((V6, entry, False) for entry in ("::2", "fe80::/10", "127.0.0.1", "0.0.0.0/0", "")),
        *((V4, entry, True) for entry in ("10.1.2.3", "10.0.0.0/8", "10.1.2.3/8", "x,10.1.2.0/24")),
        *((V4, entry, False) for entry in ("10.2.0.0/16", "10.1.2.4", "::/0", "10.0.0.0/33")),
        ("http://judge.example/v1", "0.0.0.0/0", False),
    ],
)
def test_no_proxy_holds_addresses_and_networks_too(monkeypatch: pytest.MonkeyPatch, url: str, no_proxy: str, direct: bool) -> None:
    for name in ("http_proxy", "no_proxy"):
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert (AiohttpTransport(Endpoint(url))._proxy is None) == direct


@each(
    "environment, setting, expected",
    [
        ({"http_proxy": "proxy.example:3128"}, None, "http://proxy.example:3128"),
        ({"all_proxy": "http://proxy.example:1"}, None, "http://proxy.example:1"),
        ({"http_proxy": "http://proxy.example:1", "no_proxy": "judge.example"}, None, None),
        ({"http_proxy": "http://proxy.example:1", "no_proxy": "judge.example:8000"}, None, None),
        ({"http_proxy": "http://proxy.example:1", "no_proxy": "judge.example:8001"}, None, "http://proxy.example:1"),
        ({"http_proxy": "http://proxy.example:1"}, "", None),
        ({"http_proxy": "http://proxy.example:1"}, "http://other.example:2", "http://other.example:2"),
        ({"https_proxy": "http://proxy.example:1"}, None, None),
        ({}, None, None),
    ],
)
def test_which_proxy_is_used(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], setting: str | None, expected: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert AiohttpTransport(Endpoint("http://judge.example:8000/v1", proxy=setting))._proxy == expected


@each("proxy", ["socks5://user:pw-of-mine@host:1", "http://:1", "ftp://host", "http://host:port"])
def test_a_proxy_that_cannot_be_used_is_a_configuration_error_without_its_password(proxy: str) -> None:
    with pytest.raises(ConfigError, match="proxy is not an http") as caught:
        AiohttpTransport(Endpoint("http://judge.example/v1", proxy=proxy))
    assert "pw-of-mine" not in str(caught.value)


@each("name", ["Content-Length", "transfer-encoding"])
def test_a_header_that_would_break_the_framing_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigError, match="set by the HTTP backend"):
        AiohttpTransport(Endpoint("http://judge.example/v1", headers={name: "5"}))


async def test_an_address_is_sent_as_it_was_written() -> None:
    async with Server(always(OK)) as server:
        for base, target in [
            ("/a%2Fb/v1", "/a%2Fb/v1"),
            ("/%7Ejudge/v1", "/%7Ejudge/v1"),
            ("/ü", "/%C3%BC"),
            ("/a b", "/a%20b"),
        ]:
            transport = AiohttpTransport(Endpoint(server.url.removesuffix("/v1") + base, proxy=""))
            await transport.post(PATH, b"{}")
            await transport.aclose()
            assert server.requests[-1].line == f"POST {target}{PATH} HTTP/1.1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the socket of the closed event loop is freed unclosed
def test_a_client_is_closed_although_a_response_was_arriving_in_an_event_loop_that_was_closed() -> None:
    with FakeFleet([FakeEndpoint("a", latency=Latency(per_token=0.05))]) as fleet:
        client = QRewardClient(fleet.endpoints)
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # the stream is destroyed while it is pending
        reading = aiter(client.stream_chat_completion([{"role": "user", "content": "hi"}], "m"))
        assert loop.run_until_complete(anext(reading))
        loop.close()
        asyncio.run(client.aclose())
        del reading, client
        gc.collect()
        assert loop not in aiohttp_transport._open_sessions.values()
