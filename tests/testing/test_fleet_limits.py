"""Slots and rates of a fake judge: never one more than allowed, and the truth about when to come back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Literal

import pytest
from fleet_tools import run, serving, until
from hypothesis import given
from hypothesis import strategies as st

from qreward import QRewardClient
from qreward.codecs.rate_limit_headers import read
from qreward.testing import FakeEndpoint, FakeFleet, Latency
from qreward.testing.admission import Bucket, Rates, RequestAdmission, duration
from qreward.testing.responses import hint


class HandClock(asyncio.SelectorEventLoop):
    """A loop whose time stands still until it is moved."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@contextmanager
def hand_clock() -> Iterator[tuple[asyncio.Runner, HandClock]]:
    with asyncio.Runner(loop_factory=HandClock) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, HandClock)
        yield runner, loop


@given(
    rpm=st.floats(1, 1e5),
    burst=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_a_rate_admits_again_after_just_the_time_it_says_and_never_too_much(rpm: float, burst: int, gaps: list[float]) -> None:
    admitted: list[float] = []

    async def arrive(rates: Rates, clock: HandClock) -> None:
        over = await rates.admit(0)
        if over is None:
            admitted.append(clock.now)
            return
        start, (kind, wait) = clock.now, over
        assert kind == "requests"
        assert wait > 0
        clock.now = start + wait * 0.99
        assert not rates._buckets["requests"].admits(1), "it would have been admitted earlier than it was told"
        clock.now = start + wait + 1e-6
        assert await rates.admit(0) is None, "it was not admitted when it was told"
        admitted.append(clock.now)

    with hand_clock() as (runner, clock):
        rates = Rates(FakeEndpoint("a", rpm=rpm, burst=burst))
        for gap in gaps:
            clock.now += gap
            runner.run(arrive(rates, clock))
    for first, begin in enumerate(admitted):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= burst + rpm / 60 * (admitted[last] - begin) + 1e-3


def test_the_rate_of_tokens_counts_what_each_request_uses() -> None:
    async def main() -> None:
        rates = Rates(FakeEndpoint("a", tpm=6000, burst_tokens=1000))
        assert await rates.admit(700) is None
        kind, wait = await rates.admit(500) or ("", 0)
        assert (kind, wait) == ("tokens", pytest.approx(2.0))  # 200 are missing, 100 come back a second
        assert await rates.admit(300) is None

    with hand_clock() as (runner, _):
        runner.run(main())


def test_a_request_that_finds_one_rate_used_up_is_charged_to_none() -> None:
    async def main() -> None:
        rates = Rates(FakeEndpoint("a", rpm=60, burst=2, tpm=6000, burst_tokens=100))
        assert await rates.admit(100) is None
        assert (await rates.admit(100) or ("", 0))[0] == "tokens"
        assert rates.headers()["x-ratelimit-remaining-requests"] == "1"

    with hand_clock() as (runner, _):
        runner.run(main())


def test_a_request_larger_than_the_bucket_takes_all_of_it_instead_of_waiting_for_ever() -> None:
    async def main(clock: HandClock) -> None:
        bucket = Bucket(6000, 100)
        assert bucket.admits(500)
        await bucket.take(500)
        assert bucket.wait(500) == pytest.approx(1.0)
        clock.now += 1.0001
        assert bucket.admits(500)

    with hand_clock() as (runner, clock):
        runner.run(main(clock))


def test_headers_say_what_is_left_and_when_it_is_all_back() -> None:
    async def main() -> None:
        rates = Rates(FakeEndpoint("a", rpm=600, burst=10, tpm=60_000))
        for _ in range(4):
            assert await rates.admit(1500) is None
        assert rates.headers() == {
            "x-ratelimit-limit-requests": "600",
            "x-ratelimit-remaining-requests": "6",
            "x-ratelimit-reset-requests": "400ms",
            "x-ratelimit-limit-tokens": "60000",
            "x-ratelimit-remaining-tokens": "54000",
            "x-ratelimit-reset-tokens": "6s",
        }

    with hand_clock() as (runner, _):
        runner.run(main())


@pytest.mark.parametrize("form", ["openai", "anthropic", "draft"])
def test_every_answer_tells_the_rates_in_the_form_that_was_asked_for_and_the_library_reads_it(
    form: Literal["openai", "anthropic", "draft"],
) -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", rpm=600, burst=2, tpm=60_000, rate_headers=form)) as client:
            served = [await client.chat("a") for _ in range(2)]
            told = [read(answer.headers) for answer in (*served, await client.chat("a"))]
        assert [answer.status for answer in served] == [200, 200]
        for said, left in zip(told, (1, 0, 0), strict=True):
            assert said is not None
            assert said.requests is not None
            assert (said.requests.limit, said.requests.remaining) == (600, left)
            assert said.requests.reset is not None
            assert 0 < said.requests.reset <= (2.0 if form == "anthropic" else 1.0)  # of two, which 0.2 s bring back, and rounding
            assert said.requests.window == (60 if form == "draft" else None)
            assert (said.tokens is None) == (form == "draft")
            if said.tokens is not None:
                assert said.tokens.limit == 60_000

    run(main())


def test_an_endpoint_that_was_not_asked_to_tells_nothing() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", rpm=600)) as client:
            assert read((await client.chat("a")).headers) is None

    run(main())


@pytest.mark.parametrize(("seconds", "text"), [(0, "0ms"), (0.0201, "21ms"), (1.5, "1.5s"), (360, "6m0s"), (61.25, "1m1.25s")])
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e5))
def test_no_form_of_retry_after_promises_too_early(seconds: float) -> None:
    assert int(hint("seconds", seconds)["Retry-After"]) >= max(1, seconds)
    assert int(hint("ms", seconds)["retry-after-ms"]) > seconds * 1000
    assert hint(None, seconds) == hint("seconds", math.inf) == {}


def test_a_date_is_a_whole_second_that_is_not_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.25)
    date = hint("date", 2.0)["Retry-After"]
    assert date.endswith("GMT")
    assert parsedate_to_datetime(date).timestamp() == 1_700_000_003


def test_a_full_endpoint_turns_away_every_request_above_its_cap_and_none_below() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", max_concurrency=3, latency=Latency(base=0.05), reject_status=503)) as client:
            answers = await asyncio.gather(*(client.chat("a", str(number)) for number in range(10)))
            assert sorted(answer.status for answer in answers) == [200] * 3 + [503] * 7
            seen = client.fleet.seen("a")
            assert (seen.answered, seen.rejected, seen.peak_in_flight, seen.in_flight) == (3, 7, 3, 0)
            assert not [answer for answer in answers if "Retry-After" in answer.headers]

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_keeps_to_the_cap_is_never_turned_away(stream: bool) -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", max_concurrency=4, latency=Latency(base=0.001, tokens=3))) as client:

            async def worker(number: int) -> None:
                for turn in range(25):
                    assert (await client.chat("a", f"{number}/{turn}", stream=stream)).status == 200

            await asyncio.gather(*map(worker, range(4)))
            seen = client.fleet.seen("a")
            assert (seen.answered, seen.rejected, seen.peak_in_flight) == (100, 0, 4)

    run(main())


def test_a_queueing_endpoint_serves_all_in_turn_and_never_above_its_cap() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", max_concurrency=2, over_cap="queue", latency=Latency(base=0.002))) as client:
            answers = await asyncio.gather(*(client.chat("a", str(number)) for number in range(20)))
            assert {answer.status for answer in answers} == {200}
            assert client.fleet.seen("a").peak_in_flight == 2

    run(main())


def test_a_client_that_leaves_the_queue_takes_no_slot() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", max_concurrency=1, over_cap="queue", latency=Latency(base=30))) as client:
            first, second = (asyncio.create_task(client.chat("a", text)) for text in "12")
            await until(lambda: client.fleet.seen("a").requests == 2)
            second.cancel()
            await until(lambda: client.fleet.seen("a").disconnects == 1)
            first.cancel()
            await until(lambda: client.fleet.seen("a").in_flight == 0)
            client.fleet.set("a", latency=Latency())
            assert (await client.chat("a")).status == 200

    run(main())


def test_slots_are_handed_over_in_order_and_a_raised_limit_lets_in_who_waits() -> None:
    async def main() -> None:
        gate, entered = RequestAdmission(1), []

        async def enter(number: int) -> None:
            await gate.enter()
            entered.append(number)

        held = await gate.enter()
        tasks = [asyncio.create_task(enter(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        held.free()
        held.free()  # a second time does nothing
        await until(lambda: entered == [0])
        gate.limit = 3
        gate.hand_over()
        await until(lambda: entered == [0, 2, 3])
        assert (gate.in_flight, gate.peak, gate.full) == (3, 3, True)
        gate.limit = None
        gate.hand_over()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert entered == [0, 2, 3, 4]

    run(main())


def test_a_slot_handed_to_a_task_that_is_cancelled_in_the_same_turn_is_not_lost() -> None:
    async def main() -> None:
        gate = RequestAdmission(1)
        held = await gate.enter()
        task = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
        held.free()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert gate.in_flight == 0

    run(main())


def test_a_request_over_the_rate_gets_429_and_is_admitted_when_it_was_told() -> None:
    async def main() -> None:
        limited = FakeEndpoint("a", rpm=1200, burst=2, retry_after="ms", rate_headers=True, reject_delay=0.001)
        async with serving(limited) as client:
            for _ in range(2):
                assert (await client.chat("a")).status == 200
            rejected = await client.chat("a")
            assert rejected.status == 429
            assert rejected.headers["x-ratelimit-remaining-requests"] == "0"
            await asyncio.sleep(int(rejected.headers["retry-after-ms"]) / 1000)
            assert (await client.chat("a")).status == 200
            assert client.fleet.seen("a").rejected == 1

    run(main())


def test_a_full_endpoint_says_when_its_next_slot_is_free() -> None:
    async def main() -> None:
        async with serving(FakeEndpoint("a", max_concurrency=1, retry_after="seconds", latency=Latency(base=0.3))) as client:
            first = asyncio.create_task(client.chat("a", "1"))
            await until(lambda: client.fleet.seen("a").in_flight == 1)
            rejected = await client.chat("a", "2")
            assert (rejected.status, rejected.headers["Retry-After"]) == (429, "1")
            await first

    run(main())


def test_a_cap_can_be_moved_while_requests_are_under_way() -> None:
    async def main() -> None:
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

    run(main())


def test_a_client_that_was_told_nothing_beforehand_paces_itself_by_what_answers_tell() -> None:
    async def main() -> None:
        told = FakeEndpoint("a", rpm=3000, burst=20, rate_headers=True, latency=Latency(base=0.02))
        async with FakeFleet([told]) as fleet, QRewardClient(fleet.endpoints) as client:
            for most in (20, 2):  # more is sent at first than the bucket holds; later, about 15 where nothing is told
                before = fleet.seen("a").rejected
                batch = await client.batch_chat_completion([[{"role": "user", "content": f"{number}"}] for number in range(60)], model="m")
                assert all(result.ok for result in batch)
                assert fleet.seen("a").rejected - before <= most

    run(main())
