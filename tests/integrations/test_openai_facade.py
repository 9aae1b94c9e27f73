"""``client.chat.completions.create``: what code that takes an openai client needs of it, awaited and blocking."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai_tools import MODEL, PERSON, TOOL, ToolServer, ask, fleet_and_client, quick, tools_and_client

from qreward import ConfigError, NoEndpoint, StreamInterrupted, SyncQRewardClient
from qreward.testing import FakeFleet, Faults, echo_of

pytestmark = pytest.mark.real_time


async def maybe_awaited(function: Any, **arguments: Any) -> Any:
    """As judges call it that take either kind of client."""
    answer = function(**arguments)
    return await answer if inspect.isawaitable(answer) else answer


async def test_a_judge_that_takes_an_openai_client_takes_ours_of_either_kind() -> None:
    async with fleet_and_client() as (fleet, client):
        with SyncQRewardClient(fleet.endpoints) as blocking:
            for judge in (client, blocking):
                create = judge.chat.completions.create
                answer = await asyncio.to_thread(asyncio.run, maybe_awaited(create, model=MODEL, messages=ask(), temperature=0))
                assert type(answer) is ChatCompletion
                assert answer.choices[0].message.content == echo_of(ask())


async def test_a_stream_is_read_by_a_loop_or_in_a_block_and_has_no_chunk_without_choices_unasked() -> None:
    async with fleet_and_client() as (_, client):
        create = client.chat.completions.create
        chunks = [chunk async for chunk in await create(model=MODEL, messages=ask(), stream=True)]
        assert all(type(chunk) is ChatCompletionChunk for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == echo_of(ask())
        async with await create(model=MODEL, messages=ask(), stream=True, stream_options={"include_usage": True}) as stream:
            assert (await anext(stream)).choices
            *_, last = [chunk async for chunk in stream]
        assert last.usage is not None


def test_a_blocking_stream_is_read_by_a_loop_or_in_a_block() -> None:
    with FakeFleet([quick("a")]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        create = client.chat.completions.create
        assert "".join(chunk.choices[0].delta.content or "" for chunk in create(model=MODEL, messages=ask(), stream=True)) == echo_of(ask())
        with create(model=MODEL, messages=ask(), stream=True) as stream:
            assert next(stream).choices[0].delta.role == "assistant"
        fleet.set("a", faults=Faults(cut=1))
        with create(model=MODEL, messages=ask(), stream=True) as stream:
            next(stream)  # what breaks it off later is nobody's business who has left
        with pytest.raises(StreamInterrupted):
            list(create(model=MODEL, messages=ask(), stream=True))


async def test_tools_and_unknown_parameters_go_into_the_body_and_blanks_do_not() -> None:
    server = ToolServer()
    blanks = {"seed": openai.NOT_GIVEN, "stop": openai.omit, "timeout": openai.Timeout(9), "extra_query": None}
    async with tools_and_client(server) as client:
        arguments: Any = {"tools": [TOOL], "guided_regex": "a|b", "extra_body": {"top_k": 5}, **blanks}
        answer = await client.chat.completions.create(model=MODEL, messages=ask(), **arguments)
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.function.arguments == f"{PERSON}".replace("'", '"')
        with pytest.raises(ConfigError, match="extra_query"):
            await client.chat.completions.create(model=MODEL, messages=ask(), extra_query={"a": 1})
    assert server.bodies == [{"model": MODEL, "messages": ask(), "tools": [TOOL], "guided_regex": "a|b", "top_k": 5}]


async def test_errors_are_ours_and_come_where_the_call_is_made() -> None:
    async with fleet_and_client(quick("a", models=["judge-*"])) as (_, client):
        for stream in (False, True):
            with pytest.raises(NoEndpoint):
                await client.chat.completions.create(model="gpt-9", messages=ask(), stream=stream)
    with SyncQRewardClient(["http://127.0.0.1:9/v1"]) as client, pytest.raises(ConfigError):
        client.chat.completions.create(model="", messages=ask())


def test_the_facade_costs_an_import_of_neither_the_sdk_nor_httpx() -> None:
    use = "import sys, qreward; qreward.QRewardClient(['http://a/v1']).chat.completions"
    code = f"{use}; print({{'openai', 'httpx', 'httpx2'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
