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
        seen = [fleet.seen(name) for name in "abc"]
    assert all(isinstance(error, BadRequest) and error.status_code == 400 for error in batch.errors.values())
    assert [len(result.attempts) for result in batch] == [1] * 20
    assert sum(each.requests for each in seen) == sum(each.errors.get("bad_request", 0) for each in seen) == 20


class Judge:
    """A server that says when each prompt came, and turns requests away until a time, with a ``Retry-After``."""

    def __init__(self, seconds: float, rejects: int = 0, wait: float = 0) -> None:
        self._seconds, self._rejects, self._wait = seconds, rejects, wait
        self.came: list[tuple[str, float]] = []
        self.rejected_at: list[float] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        messages = json.loads(await request.read())["messages"]
        self.came.append((messages[0]["content"], time.monotonic()))
        if len(self.rejected_at) < self._rejects:
            self.rejected_at.append(time.monotonic())
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": str(self._wait)})
        await asyncio.sleep(self._seconds)
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": echo_of(messages)}}]})


async def test_a_429_with_retry_after_is_obeyed_and_its_request_goes_elsewhere_at_once() -> None:
    strict, other = Judge(0.02, rejects=1, wait=1), Judge(0.02)
    async with serving(strict.handle) as first, serving(other.handle) as second:
        one = Limits(max_concurrency=1)
        fleet = [Endpoint(url, name=name, limits=one, proxy="") for name, url in (("strict", first), ("other", second))]
        async with QRewardClient(fleet) as client:
            batch = await client.batch_chat_completion(prompts(90), MODEL)
    assert batch.texts() == echoes(90)
    (rejected_at,) = strict.rejected_at
    turned_away = strict.came[0][0]
    assert len(strict.came) > 1  # it was asked again
    assert all(when >= rejected_at + 1 for _, when in strict.came[1:])
    (came_at,) = [when for content, when in other.came if content == turned_away]
    assert came_at < rejected_at + 1  # it did not wait for the time that was asked for
    result = next(result for result in batch if len(result.attempts) > 1)
    assert [(record.endpoint, record.outcome) for record in result.attempts] == [("strict", "overloaded"), ("other", "ok")]
    assert len(strict.came) + len(other.came) == 91


async def test_a_batch_that_is_cancelled_closes_its_connections_upstream() -> None:
    async with FakeFleet([FakeEndpoint(name, latency=Latency(base=60)) for name in "ab"]) as fleet:
        async with client_of(fleet, {"a": 10, "b": 6}) as client:
            batch = asyncio.ensure_future(client.batch_chat_completion(prompts(1000), MODEL))
            await until(lambda: (fleet.seen("a").in_flight, fleet.seen("b").in_flight) == (10, 6))
            batch.cancel()
            await asyncio.wait([batch])
            await until(lambda: fleet.seen("a").in_flight + fleet.seen("b").in_flight == 0)
            await until(lambda: in_flight(client) == 0)
        assert (fleet.seen("a").disconnects, fleet.seen("b").disconnects) == (10, 6)
        assert (fleet.seen("a").requests, fleet.seen("b").requests) == (10, 6)


async def test_what_ran_into_a_timeout_or_a_deadline_is_closed_upstream() -> None:
    async with FakeFleet([FakeEndpoint("a", latency=Latency(base=60))]) as fleet, client_of(fleet, {"a": 30}) as client:
        call = client.chat_completion(prompt(0), MODEL, timeout=1.5)
        batch = client.batch_chat_completion(prompts(9), MODEL, timeout=1.5)
        late = client.batch_chat_completion(prompts(9), MODEL, deadline=1.5)
        timed_out, *batches = await asyncio.gather(call, batch, late, return_exceptions=True)
        assert isinstance(timed_out, RequestTimeout)
        assert [len(each.errors) for each in batches if isinstance(each, BatchResult)] == [9, 9]
        await until(lambda: fleet.seen("a").in_flight == 0)
        assert fleet.seen("a").disconnects == fleet.seen("a").requests == 19


@needs_proc
async def test_closing_the_client_in_the_middle_closes_everything() -> None:
    async with FakeFleet([FakeEndpoint("a", latency=Latency(base=60))], process=True) as fleet:
        before = open_files()
        client = client_of(fleet, {"a": 12})
        batch = asyncio.ensure_future(client.batch_chat_completion(prompts(100), MODEL))
        await until(lambda: fleet.seen("a").in_flight == 12)
        await client.aclose()
        assert len((await batch).errors) == 100
        await until(lambda: open_files() == before)
        await until(lambda: fleet.seen("a").disconnects == 12)


@needs_proc
def test_a_client_that_is_not_closed_is_closed_with_its_loop() -> None:
    fleet = FakeFleet([FakeEndpoint("a")])
    with fleet:
        client = client_of(fleet, {"a": 5})
        before = open_files()
        for _ in range(3):
            batch = asyncio.run(client.batch_chat_completion(prompts(50), MODEL))
            assert batch.texts() == echoes(50)
            assert open_files() <= before + 5  # the fleet's side may not have heard of it yet
    assert fleet.seen("a").in_flight == 0


async def test_the_users_own_httpx_client_works_over_sockets_as_the_default_does() -> None:
    faults = Faults(reset=0.05, error_500=0.05, truncated=0.05, hang=0.02, seed=11)
    fake = FakeFleet([FakeEndpoint(name, latency=Latency(base=0.005), faults=faults) for name in "ab"])
    async with fake as fleet, httpx.AsyncClient(trust_env=False) as mine:
        made = endpoints(fleet, {"a": 16, "b": 16}, attempt=1, http_client=mine)
        async with QRewardClient(made, retry=Retry(attempts=10, base=0.01)) as client:
            batch = await client.batch_chat_completion(prompts(300), MODEL)
            await until(lambda: in_flight(client) == 0)
        await until(lambda: fleet.seen("a").in_flight + fleet.seen("b").in_flight == 0)
    assert batch.texts() == echoes(300), batch.errors
