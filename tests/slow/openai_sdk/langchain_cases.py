"""LangChain's ``ChatOpenAI`` and ``OpenAIEmbeddings`` over our transport, awaited and blocking, with whatever SDK is installed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai_tools import MODEL, PERSON, ToolServer, ask, fleet_and_client, quick, requests, tools_and_client
from pydantic import BaseModel

from qreward import Endpoint, QRewardClient, Retry, SyncQRewardClient, Timeouts
from qreward.integrations.openai import BASE_URL, async_http_client, http_client
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, echo_of

pytestmark = pytest.mark.real_time


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def person(name: str, age: int) -> str:
    """A person."""
    return f"{name}, {age}"


def model(client: Any, **settings: Any) -> ChatOpenAI:
    clients = {"http_client": http_client(client), "http_async_client": async_http_client(client)}
    return ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key="-", **clients, **settings)


def faulty(name: str, seed: int) -> FakeEndpoint:
    faults = Faults(error_500=0.05, error_503=0.03, hang=0.02, seed=seed)
    return FakeEndpoint(name, latency=Latency(base=0.01, tokens=4), max_concurrency=16, faults=faults)


def client_of(fleet: FakeFleet) -> QRewardClient:
    """With enough attempts that the faults, which come in any order, lose one call in 10^12."""
    made = [Endpoint(url, name=name, proxy="", timeouts=Timeouts(attempt=0.5)) for name, url in fleet.urls.items()]
    return QRewardClient(made, retry=Retry(attempts=12, base=0.01))


async def test_langchain_invokes_and_streams() -> None:
    async with fleet_and_client() as (_, client):
        chat = model(client)
        answer = await chat.ainvoke("hello")
        assert answer.content == echo_of(ask())
        assert answer.usage_metadata["output_tokens"] == 8
        pieces = [piece async for piece in chat.astream("hello")]
        assert len(pieces) > 5
        assert "".join(piece.content for piece in pieces) == echo_of(ask())
        usage = [piece.usage_metadata async for piece in chat.astream("hello", stream_usage=True)]
        assert any(each and each["output_tokens"] == 8 for each in usage)


def test_langchain_without_await() -> None:
    with FakeFleet([quick("a")]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        chat = model(client)
        assert chat.invoke("hello").content == echo_of(ask())
        assert "".join(piece.content for piece in chat.stream("hello")) == echo_of(ask())


async def test_a_batch_of_langchain_succeeds_on_a_fleet_that_limits_fails_and_hangs() -> None:
    async with FakeFleet([faulty("a", 1), faulty("b", 2)]) as fleet, client_of(fleet) as client:
        chat, words = model(client), [f"question {number}" for number in range(150)]
        answers = await chat.abatch(words)
        assert [answer.content for answer in answers] == [echo_of(ask(each)) for each in words]
        more = await asyncio.to_thread(chat.batch, words[:50], {"max_concurrency": 16})
        assert [answer.content for answer in more] == [echo_of(ask(each)) for each in words[:50]]
        assert sum(sum(fleet.seen(name).errors.values()) + fleet.seen(name).rejected for name in fleet.names) > 0


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_langchain_gets_structured_answers(method: Any) -> None:
    async with tools_and_client(ToolServer()) as client:
        structured = model(client).with_structured_output(Person, method=method)
        assert await structured.ainvoke("who, as json?") == Person(**PERSON)
        assert await asyncio.to_thread(structured.invoke, "who, as json?") == Person(**PERSON)


async def test_langchain_calls_tools_at_once_and_in_a_stream() -> None:
    async with tools_and_client(ToolServer()) as client:
        bound = model(client).bind_tools([person])
        assert (await bound.ainvoke("who?")).tool_calls[0]["args"] == PERSON
        whole: Any = None
        async for piece in bound.astream("who?"):
            whole = piece if whole is None else whole + piece
        assert whole.tool_calls[0]["args"] == PERSON


async def test_langchain_embeds_by_merged_requests() -> None:
    async with fleet_and_client(FakeEndpoint("a", max_concurrency=1, over_cap="queue")) as (fleet, client):
        settings = {"check_embedding_ctx_length": False, "http_async_client": async_http_client(client)}
        embeddings = OpenAIEmbeddings(model=MODEL, base_url=BASE_URL, api_key="-", **settings)
        vectors = await asyncio.gather(*(embeddings.aembed_query(f"text {number}") for number in range(40)))
        assert len({tuple(vector) for vector in vectors}) == 40
        assert requests(fleet) < 40
