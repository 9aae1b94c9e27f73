"""The seam for a user's own HTTP client: respx, MockTransport, hooks, and whose the client is."""

from __future__ import annotations

import errno
import os
from typing import Any

import httpx
import httpx2
import pytest
import respx
from shared_tools import completion, each
from stream_tools import call
from transport_server import Server, always, answer

from qreward.codecs.base import TransportError
from qreward.errors import ConfigError, RequestError
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import Endpoint, Timeouts
from qreward.transport.backend import HttpBackend
from qreward.transport.httpx_transport import HttpxTransport

PACKAGES = each("package", [httpx, httpx2])
URL = "http://judge.example/v1"


async def outcome_of(client: Any, url: str = URL, **settings: Any) -> Answer | Failure:
    backend = HttpBackend()
    outcome = await backend.send(Endpoint(url, http_client=client, **settings), call())
    await backend.aclose()
    return outcome


async def error_of(client: Any) -> TransportError:
    """The error of a request that fails, which holds none of the client's own."""
    with pytest.raises(TransportError) as caught:
        await HttpxTransport(Endpoint(URL, http_client=client)).post("/chat/completions", b"{}")
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    return caught.value


async def test_respx_sees_the_request_and_gives_the_answer_and_says_what_it_does_not_know() -> None:
    async with httpx.AsyncClient() as client:
        with respx.mock:
            route = respx.post(f"{URL}/chat/completions").respond(json=completion("from respx"))
            outcome = await outcome_of(client, api_key="key-of-mine")
        assert isinstance(outcome, Answer)
        assert outcome.response.text() == "from respx"
        (request,) = [recorded.request for recorded in route.calls]
        assert request.headers["authorization"] == "Bearer key-of-mine"
        with respx.mock:
            outcome = await outcome_of(client)
        assert isinstance(outcome, Failure)
        assert (outcome.kind, type(outcome.error)) == (FailureKind.UNSENDABLE, RequestError)
        assert "not mocked" in str(outcome.error)


async def test_connections_of_an_event_loop_that_is_closed_are_released_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close(_: httpx.AsyncHTTPTransport) -> None:
        raise RuntimeError("Event loop is closed")  # from asyncio, which cannot close a connection without its event loop

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "aclose", close)
    transport = HttpxTransport(Endpoint(URL))
    await transport.aclose()
    with pytest.raises(TransportError, match="closed"):
        await transport.post("/chat/completions", b"{}")


@PACKAGES
async def test_a_mock_transport_works_alone_and_in_a_client_and_neither_is_ever_closed(
    package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(package.MockTransport):  # type: ignore[name-defined,misc]
        async def aclose(self) -> None:
            raise AssertionError("closed")

    mine = Mine(lambda request: package.Response(200, json=completion(request.url.path)))
    client = package.AsyncClient(transport=mine)
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")  # the client of a bare transport must not go by it
    for given in (mine, client):
        outcome = await outcome_of(given)
        assert isinstance(outcome, Answer)
        assert (outcome.response.text(), outcome.prompt_tokens, outcome.output_tokens) == ("/v1/chat/completions", 12, 3)
    assert not client.is_closed


@PACKAGES
async def test_the_clients_own_auth_headers_and_hooks_are_kept(package: Any) -> None:
    seen: list[str] = []

    async def hook(request: Any) -> None:
        seen.append(request.headers["x-mine"])

    client = package.AsyncClient(auth=("me", "pw"), headers={"x-mine": "1"}, event_hooks={"request": [hook]}, trust_env=False)
    async with client, Server(always(answer(completion()))) as server:
        assert isinstance(await outcome_of(client, server.url), Answer)
        assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert seen == ["1"]


@PACKAGES
async def test_what_the_clients_errors_mean(package: Any) -> None:
    unsent, full = {"sent": False}, OSError(errno.EMFILE, "Too many open files")
    chained = package.ConnectError("all attempts failed")
    chained.__cause__ = full
    table: list[tuple[Exception, dict[str, bool]]] = [
        (package.ConnectTimeout("x"), unsent | {"timeout": True}),
        (package.PoolTimeout("x"), unsent | {"timeout": True}),
        *((kind("x"), unsent) for kind in (package.ConnectError, package.ProxyError, package.UnsupportedProtocol, package.InvalidURL)),
        *((kind("x"), {"timeout": True}) for kind in (package.ReadTimeout, package.WriteTimeout)),
        (package.ReadError("x"), {}),
        (package.RemoteProtocolError("Server disconnected without sending a response."), {}),
        (package.RemoteProtocolError("peer closed connection without sending complete message body"), {}),
        (package.RemoteProtocolError("illegal status line"), {"malformed": True}),
        (package.DecodingError("x"), {"malformed": True}),
        (full, unsent | {"local": True}),
        (chained, unsent | {"local": True}),
        (ConnectionResetError(), {}),
        (RuntimeError("Cannot send a request, as the client has been closed."), unsent),
        (RuntimeError("Event loop is closed"), {}),
        (RuntimeError("something else"), {}),
    ]
    for error, meant in table:

        def broken(_: Any, error: Exception = error) -> Any:
            raise error

        found = await error_of(package.MockTransport(broken))
        flags = {name: getattr(found, name) for name in ("sent", "timeout", "local", "malformed")}
        assert flags == {"sent": True, "timeout": False, "local": False, "malformed": False} | meant, repr(error)

    def within(_: Any) -> Any:
        try:
            os.dup(-1)
        except OSError as error:
            error.errno = errno.EMFILE
            raise package.ConnectError("all attempts failed")  # noqa: B904 - the case

    assert (await error_of(package.MockTransport(within))).local
    client = package.AsyncClient()
    await client.aclose()
    closed = await error_of(client)
    assert (closed.sent, "closed" in str(closed)) == (False, True), "a client that its owner closed was certainly not used"


@PACKAGES
async def test_timeouts_come_from_the_endpoint_and_not_from_the_client(package: Any) -> None:
    seen: list[Any] = []

    def note(request: Any) -> Any:
        seen.append(request.extensions["timeout"])
        return package.Response(200, json=completion())

    client = package.AsyncClient(transport=package.MockTransport(note), timeout=1)
    await outcome_of(client)
    await outcome_of(client, timeouts=Timeouts(connect=3, read=4))
    unlimited = {"connect": 10.0, "read": None, "write": None, "pool": None}
    assert seen == [unlimited, unlimited | {"connect": 3.0, "read": 4.0}]


@each("given", [httpx.Client(), object(), "http://proxy", httpx.AsyncClient])
def test_anything_else_is_refused_when_the_endpoint_is_made(given: Any) -> None:
    with pytest.raises(ConfigError, match="http_client: must be an httpx") as caught:
        Endpoint(URL, http_client=given)
    assert ("synchronous" in str(caught.value)) is isinstance(given, httpx.Client)
