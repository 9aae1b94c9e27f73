"""Probes over real sockets: what each kind of server is asked, what that comes to, and a client with probes at work."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web

from qreward import Endpoint, QRewardClient, Timeouts
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.rewards.kinds import SCORE
from qreward.scheduler.outcome import ProbeResult
from qreward.testing import FakeEndpoint, FakeFleet
from qreward.testing.spec import Latency
from qreward.transport.backend import HttpBackend

SCORES = ("tei", "openrlhf")
KEY = "sk-for-the-judge"


async def probed(endpoint: Endpoint) -> ProbeResult:
    wire = HttpBackend()
    try:
        return await wire.look(endpoint)
    finally:
        await wire.aclose()


def told(look: ProbeResult) -> tuple[bool | None, float | None, float | None, float | None]:
    return look.ready, look.running, look.waiting, look.most


Answers = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def server(answers: Answers) -> AsyncIterator[str]:
    """A server on loopback; its address."""
    runner = web.ServerRunner(web.Server(answers))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def a_call(kind: str) -> WireRequest:
    if kind in SCORES:
        return WireRequest(SCORE, "m", [SCORE.item(("q", "a"))], {}, None)
    return WireRequest(CHAT, "m", [{"role": "user", "content": "?"}], {}, None)


def test_each_kind_says_whether_it_is_ready_and_what_it_has_to_do() -> None:
    nothing, ready = (None, None, None, None), (True, None, None, None)
    expected: dict[Any, Any] = {
        "openai": (ready, ready),
        "vllm": ((True, 0, 0, None), (True, 2, 3, None)),
        "sglang": ((True, 0, 0, 2), (True, 2, 3, 2)),
        "tei": ((True, None, 0, None), (True, None, 3, None)),
        "openrlhf": (nothing, nothing),
        "nim": (ready, ready),
    }

    async def idle_and_busy(kind: Any) -> Any:
        slow = FakeEndpoint("a", kind=kind, max_concurrency=2, over_cap="queue", latency=Latency(base=30.0))
        async with FakeFleet([slow]) as fleet:
            (endpoint,) = fleet.endpoints
            wire = HttpBackend()
            idle = told(await wire.look(endpoint))
            calls = [asyncio.create_task(wire.send(endpoint, a_call(kind))) for _ in range(5)]
            while fleet.seen("a").requests < 5:  # noqa: ASYNC110 - what a fake has seen can only be asked
                await asyncio.sleep(0.005)
            busy = told(await wire.look(endpoint))
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await wire.aclose()
        return idle, busy

    assert {kind: asyncio.run(idle_and_busy(kind)) for kind in expected} == expected


def test_a_server_that_is_gone_is_not_ready_and_a_broken_setup_says_nothing() -> None:
    async def test() -> None:
        async with FakeFleet([FakeEndpoint("a", kind="vllm")]) as fleet:
            (endpoint,) = fleet.endpoints
            fleet.kill("a")
            assert told(await probed(endpoint)) == (False, None, None, None)
        bad = Endpoint("http://127.0.0.1:9/v1", proxy="socks5://127.0.0.1:1")
        assert told(await probed(bad)) == (None, None, None, None)
        wire = HttpBackend()
        await wire.aclose()
        assert told(await wire.look(endpoint)) == (None, None, None, None)

    asyncio.run(test())


async def test_only_a_connection_that_is_not_accepted_shows_that_a_server_is_not_ready() -> None:
    """A timeout, a connection that breaks later, and a machine without descriptors say nothing about the server."""
    ready = {}
    for error in (httpx.ConnectError("refused"), httpx.ConnectTimeout("x"), httpx.ReadError("x"), OSError(errno.EMFILE, "too many files")):

        def fail(_: httpx.Request, error: Exception = error) -> httpx.Response:
            raise error

        ready[type(error)] = (await probed(Endpoint("http://a/v1", kind="vllm", http_client=httpx.MockTransport(fail)))).ready
    assert ready == {httpx.ConnectError: False, httpx.ConnectTimeout: None, httpx.ReadError: None, OSError: None}


@pytest.mark.real_time
async def test_what_a_server_says_of_itself_is_asked_anew_after_it_was_not_ready_or_could_not_be_asked() -> None:
    state: dict[str, Any] = {}

    async def answers(request: web.BaseRequest) -> web.Response:
        if state["status"] is None:
            assert request.transport is not None
            request.transport.close()
        if state["status"] == 0:
            await over.wait()
        body = {"max_client_batch_size": state["most"]} if request.path == "/info" else {}
        return web.json_response(body, status=state["status"] or 200)

    found, over = [], asyncio.Event()
    async with server(answers) as url:
        endpoint, wire = Endpoint(url, kind="tei", proxy=""), HttpBackend()
        impatient = Endpoint(url, kind="tei", proxy="", timeouts=Timeouts(read=0.05))
        for status, most in ((200, 8), (200, 9), (503, 9), (200, 16), (None, 16), (200, 20), (0, 20)):
            state.update(status=status, most=most)
            result = await wire.look(impatient if status == 0 else endpoint)
            found.append((result.ready, result.items))
        over.set()
        await wire.aclose()
    assert found == [(True, 8), (True, 8), (False, None), (True, 16), (None, None), (True, 20), (None, None)]


def test_the_models_are_below_the_apis_path_and_the_rest_beside_it_and_the_key_goes_along() -> None:
    asked = []

    async def answers(request: web.BaseRequest) -> web.Response:
        asked.append((request.method, request.path, request.headers.get("Authorization")))
        return web.Response(status=404)

    async def test() -> None:
        async with server(answers) as url:
            for base, kind, path in (("/proxy/api", "openai", "/proxy/api/models"), ("/gpu/v1", "vllm", "/gpu/health")):
                asked.clear()
                await probed(Endpoint(url + base, kind=kind, api_key=KEY, proxy=""))  # type: ignore[arg-type]
                assert asked[0] == ("GET", path, f"Bearer {KEY}")

    asyncio.run(test())


def test_a_probe_that_can_have_no_effect_is_logged_once_with_the_name_of_its_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> dict[str, list[str]]:
        async with FakeFleet([FakeEndpoint("a", kind="vllm", api_key="right")]) as fleet:
            (plain,) = fleet.endpoints
            changes: dict[str, dict[str, Any]] = {
                "another kind": {"kind": "nim"},
                "a wrong key": {"kind": "openai", "api_key": "wrong-key-1"},
                "a proxy that cannot be used": {"proxy": "socks5://user:pass-2@127.0.0.1:1"},
                "a client that fails": {"http_client": httpx.AsyncClient(transport=Broken())},
                "nothing to ask for": {"kind": "openrlhf"},
                "none": {},
            }
            said = {}
            for what, change in changes.items():
                caplog.clear()
                endpoint = Endpoint(**{**plain.model_dump(exclude={"http_client"}), "name": "named", "probe": 0.01, **change})
                async with QRewardClient([endpoint]) as client:
                    client._runtime.engine.driver()
                    async with asyncio.timeout(30):
                        while what != "none" and not caplog.records:  # noqa: ASYNC110 - nobody tells us
                            await asyncio.sleep(0.01)
                    await asyncio.sleep(0.1)  # further probes, which must log nothing
                said[what] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            return said

    with caplog.at_level(logging.WARNING, "qreward"):
        said = asyncio.run(test())
    assert {what: len(lines) for what, lines in said.items()} == {**dict.fromkeys(said, 1), "none": 0}
    text = "\n".join(line for lines in said.values() for line in lines)
    assert text.count("endpoint 'named': its probe has no effect: ") == 5
    assert "GET /v1/health/ready was answered with 404; check that it is a server of kind 'nim'" in text
    assert not [secret for secret in ("wrong-key-1", "pass-2", "pass-3") if secret in text]


class Broken(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise LookupError("no such thing")
