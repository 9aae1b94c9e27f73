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
from qreward.transport.httpx_backend import HttpxTransport

PACKAGES = each("package", [httpx, httpx2])
URL = "http://judge.example/v1"


async def outcome_of(client: Any, **settings: Any) -> Answer | Failure:
    backend = HttpBackend()
    outcome = await backend.send(Endpoint(URL, http_client=client, **settings), call())
    await backend.aclose()
    return outcome


async def test_respx_sees_the_request_and_gives_the_answer() -> None:
    async with httpx.AsyncClient() as client:
        with respx.mock:
            route = respx.post(f"{URL}/chat/completions").respond(json=completion("from respx"))
            outcome = await outcome_of(client, api_key="key-of-mine")
        assert isinstance(outcome, Answer)
        assert outcome.value.text() == "from respx"
        (request,) = [recorded.request for recorded in route.calls]
        assert request.headers["authorization"] == "Bearer key-of-mine"


async def test_a_request_that_respx_does_not_know_says_so() -> None:
    async with httpx.AsyncClient() as client:
        with respx.mock:
            outcome = await outcome_of(client)
        assert isinstance(outcome, Failure)
        assert (outcome.kind, type(outcome.error)) == (FailureKind.UNSENDABLE, RequestError)
        assert "not mocked" in str(outcome.error)


@PACKAGES
@each("bare", [False, True])
async def test_a_mock_transport_works_alone_and_in_a_client(package: Any, bare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if bare:
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    mock = package.MockTransport(lambda request: package.Response(200, json=completion(request.url.path)))
    client = mock if bare else package.AsyncClient(transport=mock)
    outcome = await outcome_of(client)
    assert isinstance(outcome, Answer)
    assert outcome.value.text() == "/v1/chat/completions"
    assert (outcome.prompt_tokens, outcome.output_tokens) == (12, 3)


@PACKAGES
async def test_a_client_that_was_given_is_never_closed(package: Any) -> None:
    class Mine(package.MockTransport):  # type: ignore[name-defined,misc]
        async def aclose(self) -> None:
            raise AssertionError("closed")

    mine = Mine(lambda _: package.Response(200, json=completion()))
    client = package.AsyncClient(transport=mine)
    for given in (mine, client):
        assert isinstance(await outcome_of(given), Answer)
    assert not client.is_closed


@PACKAGES
async def test_the_clients_own_auth_headers_and_hooks_are_kept(package: Any) -> None:
    seen: list[str] = []

    async def hook(request: Any) -> None:
        seen.append(request.headers["x-mine"])

    client = package.AsyncClient(auth=("me", "pw"), headers={"x-mine": "1"}, event_hooks={"request": [hook]}, trust_env=False)
    async with client, Server(always(answer(completion()))) as server:
        backend = HttpBackend()
        assert isinstance(await backend.send(Endpoint(server.url, http_client=client), call()), Answer)
        await backend.aclose()
        assert server.requests[0].headers["authorization"].startswith("Basic ")
    assert seen == ["1"]


def _errors(package: Any) -> list[tuple[Exception, dict[str, bool]]]:
    return [
        (package.ConnectTimeout("x"), {"sent": False, "timeout": True}),
        (package.PoolTimeout("x"), {"sent": False, "timeout": True}),
        (package.ConnectError("x"), {"sent": False}),
        (package.ProxyError("x"), {"sent": False}),
        (package.UnsupportedProtocol("x"), {"sent": False}),
        (package.ReadTimeout("x"), {"timeout": True}),
        (package.WriteTimeout("x"), {"timeout": True}),
        (package.ReadError("x"), {}),
        (package.RemoteProtocolError("Server disconnected without sending a response."), {}),
        (package.RemoteProtocolError("illegal status line"), {"malformed": True}),
        (package.DecodingError("x"), {"malformed": True}),
        (OSError(errno.EMFILE, "x"), {"sent": False, "local": True}),
        (ConnectionResetError(), {}),
    ]


@PACKAGES
@each("number", range(len(_errors(httpx))))
async def test_what_the_clients_errors_mean(package: Any, number: int) -> None:
    error, meant = _errors(package)[number]

    def broken(_: Any) -> Any:
        raise error

    transport = HttpxTransport(Endpoint(URL, http_client=package.MockTransport(broken)))
    with pytest.raises(TransportError) as caught:
        await transport.post("/chat/completions", b"{}")
    flags = {name: getattr(caught.value, name) for name in ("sent", "timeout", "local", "malformed")}
    assert flags == {"sent": True, "timeout": False, "local": False, "malformed": False} | meant, repr(error)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


@PACKAGES
async def test_an_operating_systems_refusal_is_found_under_the_clients_wrapping(package: Any) -> None:
    def chained(_: Any) -> Any:
        raise package.ConnectError("all attempts failed") from OSError(errno.EMFILE, "Too many open files")

    def within(_: Any) -> Any:
        try:
            os.dup(-1)
        except OSError as error:
            error.errno = errno.EMFILE
            raise package.ConnectError("all attempts failed")  # noqa: B904 - the case

    for broken in (chained, within):
        transport = HttpxTransport(Endpoint(URL, http_client=package.MockTransport(broken)))
        with pytest.raises(TransportError) as caught:
            await transport.post("/chat/completions", b"{}")
        assert caught.value.local, broken.__name__


@PACKAGES
async def test_a_client_that_its_owner_closed_was_certainly_not_used(package: Any) -> None:
    client = package.AsyncClient()
    await client.aclose()
    transport = HttpxTransport(Endpoint(URL, http_client=client))
    with pytest.raises(TransportError, match="closed") as caught:
        await transport.post("/chat/completions", b"{}")
    assert caught.value.sent is False


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
def test_anything_else_is_a_configuration_error(given: Any) -> None:
    with pytest.raises(ConfigError, match="http_client must be an httpx"):
        HttpxTransport(Endpoint(URL, http_client=given))
