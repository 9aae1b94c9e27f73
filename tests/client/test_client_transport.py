"""``transport=``: what sends the requests of all endpoints of a client."""

from __future__ import annotations

import pickle
from typing import Any

import httpx
import pytest
import respx
from client_tools import HI, Recorder

from qreward import ConfigError, Endpoint, QRewardClient
from qreward.settings.client import ClientConfig, load_config

URL = "http://judge.example/v1"
ANSWER = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "mocked"}}]}


async def said(client: QRewardClient) -> str | None:
    return (await client.chat_completion(HI, "judge")).choices[0].message.content


@respx.mock
async def test_respx_sees_every_request_with_one_setting_in_code_in_a_file_or_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    route = respx.post(f"{URL}/chat/completions").respond(json=ANSWER)
    async with QRewardClient([URL], transport="httpx") as client:
        assert await said(client) == "mocked"
    async with QRewardClient.from_config({"endpoints": [{"base_url": URL}], "transport": "httpx"}) as client:
        assert await said(client) == "mocked"
    monkeypatch.setenv("QREWARD_TRANSPORT", "httpx")
    monkeypatch.setenv("OPENAI_BASE_URL", URL)
    async with QRewardClient([URL]) as code, QRewardClient.from_env() as environment:
        assert [await said(code), await said(environment)] == ["mocked"] * 2
    assert route.call_count == 4
    assert ClientConfig(endpoints=(Endpoint(URL),), transport="aiohttp").transport == "aiohttp", "a setting is stronger"


async def test_one_client_of_ones_own_carries_all_endpoints_with_its_hooks_and_stays_open() -> None:
    hosts: list[str] = []

    async def hook(request: httpx.Request) -> None:
        hosts.append(request.url.host)

    recorder = Recorder()
    async with httpx.AsyncClient(transport=recorder, event_hooks={"request": [hook]}) as mine:
        endpoints = [Endpoint(f"http://{name}.example/v1", name=name, models=[name]) for name in ("a", "b")]
        async with QRewardClient(endpoints, transport=mine) as client:
            for name in ("a", "b"):
                await client.chat_completion(HI, name)
            with pytest.raises(ConfigError, match="transport is an HTTP client; make the client in each process"):
                pickle.dumps(client)
        assert not mine.is_closed
    assert hosts == ["a.example", "b.example"]


async def test_a_proxy_of_the_endpoint_is_used_by_httpx_too() -> None:
    with respx.mock(using="httpcore") as router:
        router.post(f"{URL}/chat/completions").respond(json=ANSWER)
        async with QRewardClient([Endpoint(URL, proxy="http://proxy.example:3128")], transport="httpx") as client:
            assert await said(client) == "mocked"


async def test_a_transport_that_cannot_be_is_refused_with_the_closest_name_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, words in (
        ("htpx", "transport: must be 'aiohttp', 'httpx' or an httpx.AsyncClient, not 'htpx'; did you mean 'httpx'?"),
        (httpx.Client(), "not a Client"),
        (None, "not None"),
    ):
        with pytest.raises(ConfigError) as caught:
            QRewardClient([URL], transport=given)
        assert words in str(caught.value)
    monkeypatch.setenv("QREWARD_TRANSPORT", "request")
    with pytest.raises(ConfigError, match=r"transport: .*QREWARD_TRANSPORT of the environment"):
        load_config({"endpoints": [{"base_url": URL}]})


async def test_a_setting_that_the_transport_cannot_apply_is_an_error_and_a_client_in_use_keeps_its_transport() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (httpx.AsyncClient(transport=Recorder()), {"verify": False}, "verify has no effect"),
    ]
    for transport, settings, words in cases:
        async with QRewardClient([Endpoint(URL, **settings)], transport=transport) as client:
            with pytest.raises(ConfigError, match=words):
                await said(client)
            with pytest.raises(ConfigError, match="transport cannot change while the client is in use"):
                client.reload({"endpoints": [{"base_url": URL}], "transport": "aiohttp"})
