"""Slots and rates of a fake judge: never one more than allowed, and the truth about when to come back."""

from __future__ import annotations

import asyncio

from fleet_tools import serving, until
from shared_tools import each

from qreward import QRewardClient
from qreward.codecs.rate_limit_headers import read
from qreward.testing import FakeEndpoint, FakeFleet, Latency


async def test_every_answer_tells_the_rates_if_that_was_asked_for_and_the_library_reads_them() -> None:
    async with serving(FakeEndpoint("a", rpm=6, burst=2, tpm=60_000, rate_headers=True), FakeEndpoint("b", rpm=600)) as client:
        answers = [await client.chat("a") for _ in range(3)]
        assert read((await client.chat("b")).headers) is None
    assert [answer.status for answer in answers] == [200, 200, 429]
    for answer, left in zip(answers, (1, 0, 0), strict=True):
        said = read(answer.headers)
        assert said is not None
        assert said.requests is not None
        assert said.tokens is not None
        assert (said.requests.limit, said.requests.remaining, said.tokens.limit) == (6, left, 60_000)
        assert said.requests.reset is not None
        assert 0 < said.requests.reset <= 20.0  # of two


async def test_a_full_endpoint_turns_away_every_request_above_its_cap_and_none_below() -> None:
    async with serving(FakeEndpoint("a", max_concurrency=3, latency=Latency(base=1), reject_status=503)) as client:
        answers = await asyncio.gather(*(client.chat("a", str(number)) for number in range(10)))
        assert sorted(answer.status for answer in answers) == [200] * 3 + [503] * 7
        seen = client.fleet.seen("a")
        assert (seen.answered, seen.rejected, seen.peak_in_flight, seen.in_flight) == (3, 7, 3, 0)
        assert not [answer for answer in answers if "Retry-After" in answer.headers]


@each("stream", [False, True])
async def test_a_client_that_keeps_to_the_cap_is_never_turned_away(stream: bool) -> None:
    async with serving(FakeEndpoint("a", max_concurrency=4, latency=Latency(base=0.001, tokens=3))) as client:

        async def worker(number: int) -> None:
            for turn in range(25):
                assert (await client.chat("a", f"{number}/{turn}", stream=stream)).status == 200

        await asyncio.gather(*map(worker, range(4)))
        seen = client.fleet.seen("a")
        assert (seen.answered, seen.rejected, seen.peak_in_flight) == (100, 0, 4)


async def test_a_queueing_endpoint_serves_all_in_turn_and_never_above_its_cap() -> None:
    async with serving(FakeEndpoint("a", max_concurrency=2, over_cap="queue", latency=Latency(base=0.002))) as client:
        answers = await asyncio.gather(*(client.chat("a", str(number)) for number in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert client.fleet.seen("a").peak_in_flight == 2


async def test_a_client_that_leaves_the_queue_takes_no_slot() -> None:
    async with serving(FakeEndpoint("a", max_concurrency=1, over_cap="queue", latency=Latency(base=30))) as client:
        first, second = (asyncio.create_task(client.chat("a", text)) for text in "12")
        await until(lambda: client.fleet.seen("a").requests == 2)
        second.cancel()
        await until(lambda: client.fleet.seen("a").disconnects == 1)
        first.cancel()
        await until(lambda: client.fleet.seen("a").in_flight == 0)
        client.fleet.set("a", latency=Latency())
        assert (await client.chat("a")).status == 200


async def test_a_request_over_the_rate_gets_429_and_is_admitted_when_it_was_told() -> None:
    limited = FakeEndpoint("a", rpm=120, burst=2, retry_after="ms", rate_headers=True)
    async with serving(limited) as client:
        for _ in range(2):
            assert (await client.chat("a")).status == 200
        rejected = await client.chat("a")
        assert rejected.status == 429
        assert rejected.headers["x-ratelimit-remaining-requests"] == "0"
        await asyncio.sleep(int(rejected.headers["retry-after-ms"]) / 1000)
        assert (await client.chat("a")).status == 200
        assert client.fleet.seen("a").rejected == 1


async def test_a_full_endpoint_says_when_its_next_slot_is_free() -> None:
    async with serving(FakeEndpoint("a", max_concurrency=1, retry_after="seconds", latency=Latency(base=0.9))) as client:
        first = asyncio.create_task(client.chat("a", "1"))
        await until(lambda: client.fleet.seen("a").in_flight == 1)
        rejected = await client.chat("a", "2")
        assert (rejected.status, rejected.headers["Retry-After"]) == (429, "1")
        await first


async def test_a_cap_can_be_moved_while_requests_are_under_way() -> None:
    async with serving(FakeEndpoint("a", max_concurrency=1, latency=Latency(base=30))) as client:
        held = [asyncio.create_task(client.chat("a", "1"))]
        await until(lambda: client.fleet.seen("a").in_flight == 1)
        assert (await client.chat("a", "2")).status == 429
        client.fleet.set("a", max_concurrency=2)
        held.append(asyncio.create_task(client.chat("a", "3")))
        await until(lambda: client.fleet.seen("a").in_flight == 2)
        client.fleet.set("a", max_concurrency=1)
        assert (await client.chat("a", "4")).status == 429
        for task in held:
            task.cancel()
        await until(lambda: client.fleet.seen("a").disconnects == 2)


async def test_a_client_that_was_told_nothing_beforehand_paces_itself_by_what_answers_tell() -> None:
    told = FakeEndpoint("a", rpm=3000, burst=20, rate_headers=True, latency=Latency(base=0.02))
    async with FakeFleet([told]) as fleet, QRewardClient(fleet.endpoints) as client:
        for most in (20, 2):  # more is sent at first than the bucket holds; later, about 15 where nothing is told
            before = fleet.seen("a").rejected
            batch = await client.batch_chat_completion([[{"role": "user", "content": f"{number}"}] for number in range(60)], model="m")
            assert all(result.ok for result in batch)
            assert fleet.seen("a").rejected - before <= most
