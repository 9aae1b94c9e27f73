"""The installed openai SDK over our transport: what it sends arrives as it is, and what it gets is what the server said."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai_tools import LIBRARIES, MODEL, PERSON, TOOL, ToolServer, ask, fleet_and_client, requests, sdk, sync_sdk, tools_and_client
from pydantic import BaseModel

from qreward import ConfigError, QRewardClient, SyncQRewardClient
from qreward.integrations.openai import BASE_URL, async_openai_client, openai_client, transport
from qreward.testing import FakeEndpoint, FakeFleet, echo_of

pytestmark = pytest.mark.real_time

libraries = pytest.mark.parametrize("library", LIBRARIES)


class Person(BaseModel):
    name: str
    age: int


@libraries
async def test_a_completion_comes_as_the_endpoint_gave_it(library: str) -> None:
    async with fleet_and_client() as (_, client), sdk(client, library) as ours:
        raw = await ours.chat.completions.with_raw_response.create(model=MODEL, messages=ask())
        answer = raw.parse()
        assert answer.choices[0].message.content == echo_of(ask())
        assert answer.usage is not None
        assert (raw.headers["content-type"], raw.headers["x-qreward-endpoint"] in ("a", "b")) == ("application/json", True)


@libraries
async def test_a_stream_comes_chunk_by_chunk_with_the_usage_only_if_it_was_asked_for(library: str) -> None:
    async with fleet_and_client() as (_, client), sdk(client, library) as ours:
        chunks = [chunk async for chunk in await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True)]
        assert all(len(chunk.choices) == 1 for chunk in chunks)
        assert len(chunks) == 10  # the role, eight tokens, and the end
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == echo_of(ask())
        options: Any = {"include_usage": True}
        stream = await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True, stream_options=options)
        *_, last = [chunk async for chunk in stream]
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == 8


@libraries
def test_blocking_code_gets_the_same(library: str) -> None:
    with FakeFleet([FakeEndpoint("a")]) as fleet, SyncQRewardClient(fleet.endpoints) as client, sync_sdk(client, library) as ours:
        assert ours.chat.completions.create(model=MODEL, messages=ask()).choices[0].message.content == echo_of(ask())
        with ours.chat.completions.create(model=MODEL, messages=ask(), stream=True) as stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == echo_of(ask())
        assert len(ours.embeddings.create(model=MODEL, input=["a", "b"]).data) == 2
        assert [model.id for model in ours.models.list()] == ["*"]
        with ours.chat.completions.create(model=MODEL, messages=ask(), stream=True):
            pass  # left before it was read


async def test_what_was_sent_goes_on_unchanged_and_what_came_back_is_kept_whole() -> None:
    server = ToolServer()
    sent = {"model": MODEL, "messages": ask("ünïcode \U0001f600"), "tools": [TOOL], "n": 2, "logprobs": True, "temperature": 0.1}
    sent |= {"seed": 12345678901234567890, "priority": 3, "timeout": 7, "guided_json": {"a": [None, 1.5]}, "user": None}
    async with tools_and_client(server) as client, sdk(client) as ours:
        raw = await ours.chat.completions.with_raw_response.create(model=MODEL, messages=sent["messages"], extra_body=sent)
        assert server.bodies == [sent]
        assert json.loads(raw.text if isinstance(raw.text, str) else raw.http_response.text)["x_extra"] == {"kept": [1, None]}
        parsed: Any = raw.parse()
        assert parsed.x_extra == {"kept": [1, None]}
        assert len(parsed.choices) == 2


async def test_headers_of_the_program_are_passed_on_but_not_its_key_nor_what_the_sdk_adds() -> None:
    server = ToolServer()
    async with tools_and_client(server) as client, sdk(client) as ours:
        added = {"X-Judge": "7", "OpenAI-Organization": "org-of-the-program", "Cookie": "a=b", "traceparent": "00-0-0-00"}
        await ours.chat.completions.create(model=MODEL, messages=ask(), extra_headers=added)
    (headers,) = server.headers
    assert headers["x-judge"] == "7"
    assert headers["authorization"] == "Bearer sk-of-the-endpoint"
    assert headers["user-agent"] == "qreward"
    assert not {name for name in headers if name.startswith(("x-stainless", "openai-", "cookie"))}
    assert headers.get("traceparent") != "00-0-0-00"


@libraries
async def test_tools_are_called_and_a_structured_answer_is_parsed_at_once_and_in_pieces(library: str) -> None:
    server = ToolServer()
    async with tools_and_client(server) as client, sdk(client, library) as ours:
        given: Any = {"model": MODEL, "messages": ask()}
        answer = await ours.chat.completions.create(**given, tools=[TOOL])
        async with ours.chat.completions.stream(**given, tools=[TOOL]) as stream:
            final = await stream.get_final_completion()
        for message in (answer.choices[0].message, final.choices[0].message):
            (call,) = message.tool_calls or []
            assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "person", PERSON)
        parsed = await ours.chat.completions.parse(**given, response_format=Person)
        async with ours.chat.completions.stream(**given, response_format=Person) as stream:
            final = await stream.get_final_completion()
        assert [each.choices[0].message.parsed for each in (parsed, final)] == [Person(**PERSON)] * 2
    assert server.bodies[-1]["response_format"]["json_schema"]["name"] == "Person"


async def test_a_server_that_does_not_stream_is_heard_as_one_chunk() -> None:
    async with tools_and_client(ToolServer(streams=False)) as client, sdk(client) as ours:
        (chunk,) = [chunk async for chunk in await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True)]
        assert (chunk.object, chunk.choices[0].delta.content) == ("chat.completion.chunk", "hello")
        (chunk,) = [chunk async for chunk in await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True, tools=[TOOL])]
        (call,) = chunk.choices[0].delta.tool_calls or []
        assert (call.index, call.id) == (0, "call-1")


@libraries
async def test_vectors_are_merged_on_the_wire_and_each_gets_its_own(library: str) -> None:
    async with (
        fleet_and_client(FakeEndpoint("a", max_concurrency=1, over_cap="queue")) as (fleet, client),
        sdk(client, library) as ours,
    ):
        texts = [f"text {number}" for number in range(64)]
        answers = await asyncio.gather(*(ours.embeddings.create(model=MODEL, input=text) for text in texts))
        assert requests(fleet) < len(texts)
        alone = openai.AsyncOpenAI(base_url=fleet.urls["a"], api_key="-")
        async with alone:
            expected = (await alone.embeddings.create(model=MODEL, input=texts)).data
        assert [answer.data[0].embedding for answer in answers] == [each.embedding for each in expected]
        assert all(answer.data[0].index == 0 for answer in answers)


async def test_legacy_completions_and_moderations_go_as_they_are() -> None:
    async with fleet_and_client() as (fleet, client), sdk(client) as ours:
        answer = await ours.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=5)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert answer.id == "cmpl-1"
        found = await ours.moderations.create(model=MODEL, input=["a", "b", "c"])
        assert len(found.results) == 3
        assert requests(fleet) == 2


async def test_the_routes_are_the_models() -> None:
    async with fleet_and_client(FakeEndpoint("a", models=["judge-*", "org/rm-7b"])) as (_, client), sdk(client) as ours:
        assert {model.id async for model in ours.models.list()} == {"judge-*", "org/rm-7b"}
        assert (await ours.models.retrieve("org/rm-7b")).id == "org/rm-7b"
        assert (await ours.models.retrieve("judge-70b")).object == "model"


async def test_ready_clients_of_the_installed_sdk_and_any_program_on_httpx_need_no_setting() -> None:
    async with fleet_and_client() as (_, client):
        async with async_openai_client(client, priority=0) as ours:
            assert (await ours.chat.completions.create(model=MODEL, messages=ask())).choices[0].message.content == echo_of(ask())
        with openai_client(client) as blocking:  # the client is not closed with an SDK
            answer = await asyncio.to_thread(blocking.chat.completions.create, model=MODEL, messages=ask())
        assert answer.choices[0].message.content == echo_of(ask())
        async with httpx.AsyncClient(transport=transport(client), base_url=BASE_URL) as http:
            response = await http.post("/chat/completions", json={"model": MODEL, "messages": ask()})
        assert response.status_code == 200
        assert response.json()["choices"][0]["message"]["content"] == echo_of(ask())


def test_what_is_no_client_or_no_priority_is_refused_at_once() -> None:
    client = QRewardClient(["http://gpu-0:8000/v1"])
    with pytest.raises(ConfigError, match="takes a QRewardClient"):
        transport(openai.OpenAI(api_key="-"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="priority"):
        transport(client, priority=99)
    assert "gpu-0" in repr(transport(client))


async def test_an_answer_comes_through_however_it_ended_for_the_program_to_read() -> None:
    reasons = ("stop", "length", "content_filter", "abort", "error", "odd")
    server = ToolServer()
    async with tools_and_client(server) as client, sdk(client) as ours:
        for server.reason in reasons:
            whole = await ours.chat.completions.create(model=MODEL, messages=ask())
            assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("hello", server.reason)
            chunks = [chunk async for chunk in await ours.chat.completions.create(model=MODEL, messages=ask(), stream=True)]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"
            assert chunks[-1].choices[0].finish_reason == server.reason
    assert len(server.bodies) == 2 * len(reasons), "nothing is sent twice"
