"""Slots and rates of a fake judge over HTTP: never one more than allowed, and the truth about when to come back."""

from __future__ import annotations

import asyncio

from fleet_tools import serving
from shared_tools import until

from qreward.codecs.rate_limit_headers import read
from qreward.testing import FakeEndpoint, Latency


async def test_every_answer_tells_the_rates_if_that_was_asked_for_and_the_library_reads_them() -> None:
    told = FakeEndpoint("a", rpm=6, burst=2, tpm=60_000, rate_headers=True, retry_after="ms")
    async with serving(told, FakeEndpoint("b", rpm=600)) as client:
        answers = [await client.chat("a") for _ in range(3)]
        assert read((await client.chat("b")).headers) is None
        assert (client.fleet.seen("a").answered, client.fleet.seen("a").rejected) == (2, 1)
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert 0 < int(answers[2].headers["retry-after-ms"]) <= 10_001  # rounded up, and one more, so that nobody comes too early
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


async def test_a_queueing_endpoint_serves_all_in_turn_and_a_client_that_leaves_the_queue_takes_no_slot() -> None:
    async with serving(FakeEndpoint("a", max_concurrency=2, over_cap="queue", latency=Latency(base=30))) as client:
        held = [asyncio.create_task(client.chat("a", text)) for text in "123"]
        await until(lambda: client.fleet.seen("a").requests == 3)
        held[2].cancel()
        await until(lambda: client.fleet.seen("a").disconnects == 1)
        client.fleet.set("a", latency=Latency(base=0.002))
        queued = [asyncio.create_task(client.chat("a", str(number))) for number in range(20)]
        await until(lambda: client.fleet.seen("a").requests == 23)
        assert client.fleet.seen("a").answered == 0
        for task in held:
            task.cancel()
        assert {answer.status for answer in await asyncio.gather(*queued)} == {200}
        seen = client.fleet.seen("a")
        assert (seen.answered, seen.peak_in_flight, seen.in_flight) == (20, 2, 0)


async def test_a_full_endpoint_says_when_its_next_slot_is_free_and_its_cap_can_be_moved() -> None:
    async with serving(FakeEndpoint("a", max_concurrency=1, retry_after="seconds", latency=Latency(base=30))) as client:
        held = [asyncio.create_task(client.chat("a", "1"))]
        await until(lambda: client.fleet.seen("a").in_flight == 1)
        rejected = await client.chat("a", "2")
        assert rejected.status == 429
        assert 25 < int(rejected.headers["Retry-After"]) <= 30
        client.fleet.set("a", max_concurrency=2)
        held.append(asyncio.create_task(client.chat("a", "3")))
        await until(lambda: client.fleet.seen("a").in_flight == 2)
        client.fleet.set("a", max_concurrency=1)
        assert (await client.chat("a", "4")).status == 429
        for task in held:
            task.cancel()
        await until(lambda: client.fleet.seen("a").disconnects == 2)
