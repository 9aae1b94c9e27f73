"""Streams of a fake judge that stall, babble, or break off at a chosen point; and clients that are slow or leave."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import aiohttp
import pytest
from fleet_tools import Client, serving, until, user
from shared_tools import each

from qreward.codecs.sse import Parser
from qreward.testing import FakeEndpoint, Faults, Latency, echo_of

LONG = FakeEndpoint("a", latency=Latency(tokens=20_000), responder=lambda _: "0123456789abcdef" * 1_000_000)  # 16 MB


def faulty(tokens: int = 20, **faults: Any) -> FakeEndpoint:
    return FakeEndpoint("a", faults=Faults(**faults), latency=Latency(tokens=tokens), max_concurrency=8)


def events(body: bytes) -> list[bytes]:
    parser = Parser()
    return [event.data for event in (*parser.feed(body), *parser.finish())]


async def begun(client: Client, stream: bool) -> tuple[aiohttp.ClientResponse, bytes]:
    """A response that stalls half-way, and what came of it before."""
    body = {"model": "m", "messages": user("hi"), "stream": stream}
    response = await client._session.post(client.fleet.urls["a"] + "/chat/completions", json=body)
    half, came = int(response.headers.get("Content-Length", 0)) // 2, b""
    while len(events(came)) < 1 + 10 if stream else len(came) < half:
        came += await response.content.readany()
    return response, came


@each("stream", [False, True])
async def test_a_stall_sends_a_beginning_and_holds_its_slot_until_the_client_leaves(stream: bool) -> None:
    async with serving(faulty(stall=1)) as client:
        response, came = await begun(client, stream)
        assert response.status == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readany(), 0.02)
        seen = client.fleet.seen("a")
        assert (seen.errors, seen.in_flight, seen.answered, seen.disconnects) == ({"stall": 1}, 1, 0, 0)
        assert len(events(came)) == 1 + 10 if stream else len(came) == int(response.headers["Content-Length"]) // 2
        response.close()
        await until(lambda: client.fleet.seen("a").in_flight == 0)
        assert client.fleet.seen("a").disconnects == 1


async def test_noise_changes_nothing_for_those_who_know_the_rules() -> None:
    async with serving(faulty(noise=1)) as client:
        plain = await client.chat("a")
        assert plain.body[:1].isspace()
        assert json.loads(plain.body)["choices"][0]["message"]["content"] == echo_of(user("hi"))
        streamed = await client.chat("a", stream=True)
        assert all(noise in streamed.body for noise in (b": keep-alive\n\n", b"\r\n\r\n", b"\r\r", b"no field of any kind\n"))
        *chunks, done = events(streamed.body)
        assert done == b"[DONE]"
        assert len(chunks) == 1 + 20 + 1
        deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content", "") for delta in deltas) == echo_of(user("hi"))
        assert (client.fleet.seen("a").answered, client.fleet.seen("a").errors) == (2, {})


@each("point, chunks", [(0.0, 1), (0.25, 1 + 5), (0.99, 1 + 19)])
async def test_a_fault_comes_at_the_point_that_was_chosen(point: float, chunks: int) -> None:
    async with serving(faulty(truncated=1, point=point)) as client:
        assert len(events((await client.chat("a", stream=True)).body)) == chunks
        whole = (await client.post("a", "/embeddings", {"model": "m", "input": "x"})).body
        with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
            json.loads(whole)


async def test_points_that_are_drawn_are_all_over_the_answer_and_the_same_each_time() -> None:
    async with serving(faulty(tokens=100, truncated=1, point=None, seed=3)) as client:
        lengths = [len(events((await client.chat("a", stream=True)).body)) for _ in range(40)]
        assert min(lengths) < 20, "seed 3"
        assert max(lengths) > 80, "seed 3"
        client.fleet.reset()
        assert [len(events((await client.chat("a", stream=True)).body)) for _ in range(40)] == lengths


async def test_a_slow_client_holds_the_endpoint_back_and_others_are_served_meanwhile() -> None:
    async with serving(LONG) as client:
        body = {"model": "m", "messages": user("hi"), "stream": True}
        slow = await client._session.post(client.fleet.urls["a"] + "/chat/completions", json=body)
        await slow.content.readany()
        whole = await client.chat("a", stream=True)
        assert events(whole.body)[-1] == b"[DONE]"
        assert (client.fleet.seen("a").answered, client.fleet.seen("a").in_flight) == (1, 1)
        slow.close()
        await until(lambda: client.fleet.seen("a").in_flight == 0)


async def test_a_client_that_leaves_while_it_is_written_to_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(LONG) as client:
            for wait in range(12):
                task = asyncio.create_task(client.chat("a", f"{wait}", stream=True))
                await until(lambda: client.fleet.seen("a").in_flight == 1)
                for _ in range(wait):
                    await asyncio.sleep(0)
                task.cancel()
                await until(lambda: client.fleet.seen("a").in_flight == 0)
            await until(lambda: client.fleet.seen("a").disconnects == 12)
    assert caplog.text == ""
