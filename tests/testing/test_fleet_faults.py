"""Each way in which a fake judge goes wrong, seen from a client; and clients that are slow or leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from typing import Any

import aiohttp
import pytest
from fleet_tools import Client, serving, user
from shared_tools import each, run, until

from qreward.codecs.chat_stream import Parser
from qreward.testing import FakeEndpoint, Faults, Latency, Seen, echo_of
from qreward.testing.server import FakeServer


def faulty(tokens: int = 20, **rates: Any) -> FakeEndpoint:
    return FakeEndpoint("a", faults=Faults(**rates), latency=Latency(tokens=tokens), max_concurrency=8)


def under(fault: str, stream: bool = False) -> tuple[Any, Seen]:
    """What one request to an endpoint that always has this fault ends in, and what the endpoint saw."""

    async def main() -> tuple[Any, Seen]:
        rates: dict[str, Any] = {fault: 1.0}
        async with serving(faulty(**rates, trickle_gap=0.0005)) as client:
            (found,) = await asyncio.gather(client.chat("a", stream=stream), return_exceptions=True)
            await until(lambda: client.fleet.seen("a").in_flight == 0)
            return found, client.fleet.seen("a")

    return run(main())


def test_a_fault_of_the_connection_gives_no_answer_or_half_of_one() -> None:
    dropped = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
    for stream in (False, True):
        for fault, errors in (("reset", dropped), ("cut", (aiohttp.ClientPayloadError,))):
            found, seen = under(fault, stream)
            assert isinstance(found, errors), (fault, stream)
            assert (seen.errors, seen.answered, seen.disconnects) == ({fault: 1}, 0, 0), (fault, stream)


async def test_an_error_is_an_error_body_with_its_status_and_faults_can_be_changed() -> None:
    async with serving(faulty()) as client:
        for fault, status in (("", 200), ("error_500", 500), ("error_503", 503)):
            client.fleet.set("a", faults=Faults(**({fault: 1} if fault else {})))
            found = await client.chat("a")
            assert found.status == status
            assert not fault or json.loads(found.body)["error"]["code"] == status
        client.fleet.set("a", faults={})
        assert (await client.chat("a")).status == 200
        assert client.fleet.seen("a").errors == {"error_500": 1, "error_503": 1}


def test_a_wrong_answer_with_status_200_is_half_json_or_an_error_or_a_page() -> None:
    found = {}
    for fault in ("truncated", "error_in_200", "malformed"):
        found[fault], seen = under(fault)
        assert found[fault].status == 200
        assert (seen.answered, seen.errors) == (0, {fault: 1})
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(found["truncated"].body)
    body, page = json.loads(found["error_in_200"].body), found["malformed"]
    assert (list(body), body["error"]["code"]) == (["error"], 502)
    assert (page.body[:6], page.headers["Content-Type"].partition(";")[0]) == (b"<html>", "text/html")


def test_a_slow_trickle_ends_in_the_whole_answer() -> None:
    for stream in (False, True):
        found, seen = under("slow_trickle", stream)
        assert found.status == 200
        assert found.body.endswith(b"data: [DONE]\n\n") if stream else "choices" in json.loads(found.body)
        assert (seen.answered, seen.errors) == (1, {})


def test_a_faulty_stream_ends_half_way_without_done() -> None:
    last = {}
    for fault in ("truncated", "error_in_200", "malformed"):
        found, seen = under(fault, stream=True)
        assert found.status == 200
        *_, last[fault] = came = events(found.body)
        assert len(came) == 1 + 10 + (fault != "truncated")
        assert last[fault] != b"[DONE]"
        assert (seen.answered, seen.errors) == (0, {fault: 1})
    assert "error" in json.loads(last["error_in_200"])
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(last["malformed"])


async def test_a_hang_holds_its_slot_until_the_client_leaves() -> None:
    async with serving(faulty(hang=1)) as client:
        task = asyncio.create_task(client.chat("a"))
        await until(lambda: client.fleet.seen("a").errors == {"hang": 1})
        assert client.fleet.seen("a").in_flight == 1
        task.cancel()
        await until(lambda: client.fleet.seen("a").in_flight == 0)
        assert client.fleet.seen("a").disconnects == 1


async def test_faults_come_as_often_as_asked_the_same_each_time_and_for_each_attempt() -> None:
    async def drawn(faults: Faults, name: str = "a") -> list[str | None]:
        server = FakeServer(FakeEndpoint(name, faults=faults))
        found = [server.draw() for _ in range(4000)]
        await server.aclose()
        return found

    faults = Faults(reset=0.1, hang=0.3, cut=0.05, seed=11)
    first = await drawn(faults)
    counts = Counter(first)
    for kind, rate in (("reset", 0.1), ("hang", 0.3), ("cut", 0.05), (None, 0.55)):
        # five standard deviations of a binomial
        assert abs(counts[kind] / 4000 - rate) < 5 * (rate * (1 - rate) / 4000) ** 0.5, "seed 11"
    assert await drawn(faults) == first
    assert await drawn(faults, name="b") != first, "endpoints would fail in step"
    assert await drawn(faults.model_copy(update={"seed": 12})) != first
    async with serving(faulty(error_500=0.5)) as client:
        assert {(await client.chat("a")).status for _ in range(30)} == {200, 500}
        assert client.fleet.seen("a").duplicates == 29


async def test_every_request_is_counted_as_exactly_one_thing() -> None:
    async def attempt(client: Client, number: int) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            await client.chat("a", str(number % 90), stream=bool(number % 2))

    mixed = Faults(reset=0.1, error_500=0.1, truncated=0.1, error_in_200=0.1, cut=0.1, malformed=0.1, slow_trickle=0.1, trickle_gap=0)
    limited = FakeEndpoint("a", faults=mixed, max_concurrency=20, rpm=60_000, burst=150, latency=Latency(base=0.001, tokens=5))
    async with serving(limited) as client:
        await asyncio.gather(*(attempt(client, number) for number in range(100)))
        await asyncio.gather(*(attempt(client, number) for number in range(100)))
        await until(lambda: client.fleet.seen("a").in_flight == 0)
        seen = client.fleet.seen("a")
        # aiohttp may send a request again over a connection that it found reset, so there can be more than 200.
        assert seen.requests >= 200
        assert seen.answered + seen.rejected + sum(seen.errors.values()) + seen.disconnects == seen.requests
        assert seen.rejected > 0
        assert len(seen.errors) >= 4


# streams, and clients that are slow or leave

LONG = FakeEndpoint("a", latency=Latency(tokens=20_000), responder=lambda _: "0123456789abcdef" * 1_000_000)  # 16 MB


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
