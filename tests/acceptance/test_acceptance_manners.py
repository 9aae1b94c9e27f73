"""Manners towards a server: a refusal is not repeated, a wait that was asked for is kept, what nobody wants is closed."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
from acceptance_tools import MODEL, client_of, echoes, endpoints, in_flight, needs_proc, open_files, prompt, prompts, serving, until
from aiohttp import web

from qreward import BadRequest, BatchResult, Endpoint, Limits, QRewardClient, RequestTimeout, Retry
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, echo_of


async def test_a_request_that_is_refused_is_sent_once() -> None:
    async with FakeFleet([FakeEndpoint(name) for name in "abc"]) as fleet, client_of(fleet, {}) as client:
        batch = await client.batch_chat_completion(prompts(20), MODEL, n=500)
        assert all(isinstance(error, BadRequest) and error.status_code == 400 for error in batch.errors.values())
        assert sum(fleet.seen(name).requests for name in "abc") == len(batch.errors) == 20


class Judge:
    """A server that notes when each prompt came, and turns the first away with a ``Retry-After``, if it is strict."""

    def __init__(self, strict: bool) -> None:
        self.came: list[tuple[str, float]] = []
        self._strict = strict

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        messages = json.loads(await request.read())["messages"]
        self.came.append((messages[0]["content"], time.monotonic()))
        if self._strict and len(self.came) == 1:
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "1"})
        await asyncio.sleep(0.02)
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": echo_of(messages)}}]})


async def test_a_429_with_retry_after_is_obeyed_and_its_request_goes_elsewhere_at_once() -> None:
    strict, other = Judge(strict=True), Judge(strict=False)
    async with serving(strict.handle) as first, serving(other.handle) as second:
        one = Limits(max_concurrency=1)
        fleet = [Endpoint(url, name=name, limits=one, proxy="") for name, url in (("strict", first), ("other", second))]
        async with QRewardClient(fleet) as client:
            batch = await client.batch_chat_completion(prompts(90), MODEL)
    assert batch.texts() == echoes(90)
    (turned_away, rejected_at), *later = strict.came
    assert later  # it was asked again
    assert all(when >= rejected_at + 1 for _, when in later)
    (came_at,) = [when for content, when in other.came if content == turned_away]
    assert came_at < rejected_at + 1  # it did not wait for the time that was asked for
    assert len(strict.came) + len(other.came) == 91


@needs_proc
async def test_what_is_cancelled_late_or_left_by_a_closed_client_is_closed_upstream() -> None:
    async with FakeFleet([FakeEndpoint("a", latency=Latency(base=60))], process=True) as fleet:
        before = open_files()
        async with client_of(fleet, {"a": 30}) as client:
            batch = asyncio.ensure_future(client.batch_chat_completion(prompts(100), MODEL))
            await until(lambda: fleet.seen("a").in_flight == 30)
            batch.cancel()
            await asyncio.wait([batch])
            await until(lambda: fleet.seen("a").in_flight == in_flight(client) == 0)
            call = client.chat_completion(prompt(0), MODEL, timeout=1.5)
            short = client.batch_chat_completion(prompts(9), MODEL, timeout=1.5)
            late = client.batch_chat_completion(prompts(9), MODEL, deadline=1.5)
            timed_out, *batches = await asyncio.gather(call, short, late, return_exceptions=True)
            assert isinstance(timed_out, RequestTimeout)
            assert [len(each.errors) for each in batches if isinstance(each, BatchResult)] == [9, 9]
            await until(lambda: fleet.seen("a").disconnects == fleet.seen("a").requests == 49)
            batch = asyncio.ensure_future(client.batch_chat_completion(prompts(100), MODEL))
            await until(lambda: fleet.seen("a").in_flight)
        assert len((await batch).errors) == 100
        await until(lambda: open_files() == before)
        await until(lambda: fleet.seen("a").disconnects == fleet.seen("a").requests > 49)


@needs_proc
def test_a_client_that_is_not_closed_is_closed_with_its_loop() -> None:
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        client = client_of(fleet, {"a": 5})
        before = open_files()
        for _ in range(3):
            assert asyncio.run(client.batch_chat_completion(prompts(50), MODEL)).texts() == echoes(50)
            assert open_files() <= before + 5  # the fleet's side may not have heard of it yet


async def test_the_users_own_httpx_client_works_over_sockets_as_the_default_does() -> None:
    faults = Faults(reset=0.05, error_500=0.05, truncated=0.05, hang=0.02, seed=11)
    fake = FakeFleet([FakeEndpoint(name, latency=Latency(base=0.005), faults=faults) for name in "ab"])
    async with fake as fleet, httpx.AsyncClient(trust_env=False) as mine:
        made = endpoints(fleet, {"a": 16, "b": 16}, attempt=1, http_client=mine)
        async with QRewardClient(made, retry=Retry(attempts=10, base=0.01)) as client:
            batch = await client.batch_chat_completion(prompts(300), MODEL)
            await until(lambda: in_flight(client) == 0)
    assert batch.texts() == echoes(300), batch.errors
