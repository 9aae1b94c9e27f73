"""Rates and slots of a fake judge in virtual time: never one more than allowed, and the truth about when to come back."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.testing import FakeEndpoint, run_in_virtual_time
from qreward.testing.endpoint import Bucket, Rates, RequestAdmission, duration
from qreward.testing.server import hint

pytestmark = pytest.mark.virtual_time


@given(rpm=st.floats(1, 1e5), burst=st.integers(1, 50), gaps=st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_a_rate_admits_again_after_just_the_time_it_says_and_never_too_much(rpm: float, burst: int, gaps: list[float]) -> None:
    admitted: list[float] = []

    async def arrive(rates: Rates) -> None:
        over = rates.admit(0)
        if over is not None:
            kind, wait = over
            assert kind == "requests"
            assert wait > 0
            await asyncio.sleep(wait * 0.99)
            assert rates._buckets["requests"].wait(1) > 0, "it would have been admitted earlier than it was told"
            await asyncio.sleep(wait * 0.01 + 1e-6)
            assert rates.admit(0) is None, "it was not admitted when it was told"
        admitted.append(asyncio.get_running_loop().time())

    async def main() -> None:
        rates = Rates(FakeEndpoint("a", rpm=rpm, burst=burst))
        for gap in gaps:
            await asyncio.sleep(gap)
            await arrive(rates)

    run_in_virtual_time(main())
    for first, begin in enumerate(admitted):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= burst + rpm / 60 * (admitted[last] - begin) + 1e-3


async def test_the_rate_of_tokens_counts_what_each_request_uses() -> None:
    rates = Rates(FakeEndpoint("a", tpm=6000))
    assert rates.admit(5700) is None
    assert rates.admit(500) == ("tokens", pytest.approx(2.0))  # 200 are missing, 100 come back a second
    assert rates.admit(300) is None


async def test_a_request_that_finds_one_rate_used_up_is_charged_to_none() -> None:
    rates = Rates(FakeEndpoint("a", rpm=60, burst=2, tpm=6000))
    assert rates.admit(6000) is None
    assert (rates.admit(6000) or ("", 0))[0] == "tokens"
    assert rates.headers()["x-ratelimit-remaining-requests"] == "1"


async def test_a_request_larger_than_the_bucket_takes_all_of_it_instead_of_waiting_for_ever() -> None:
    bucket = Bucket(6000, 100)
    assert bucket.wait(500) == 0
    bucket.take(500)
    assert bucket.wait(500) == pytest.approx(1.0)
    await asyncio.sleep(1.0001)
    assert bucket.wait(500) == 0


async def test_headers_say_what_is_left_and_when_it_is_all_back() -> None:
    rates = Rates(FakeEndpoint("a", rpm=600, burst=10, tpm=60_000))
    for _ in range(4):
        assert rates.admit(1500) is None
    requests = {"limit-requests": "600", "remaining-requests": "6", "reset-requests": "400ms"}
    tokens = {"limit-tokens": "60000", "remaining-tokens": "54000", "reset-tokens": "6s"}
    assert rates.headers() == {f"x-ratelimit-{name}": value for name, value in {**requests, **tokens}.items()}
    assert [duration(seconds) for seconds in (0, 0.0201, 1.5, 360, 61.25)] == ["0ms", "21ms", "1.5s", "6m0s", "1m1.25s"]


@given(st.floats(0, 1e5))
def test_no_form_of_retry_after_promises_too_early(seconds: float) -> None:
    assert int(hint("seconds", seconds)["Retry-After"]) >= max(1, seconds)
    assert int(hint("ms", seconds)["retry-after-ms"]) > seconds * 1000
    assert hint(None, seconds) == hint("seconds", math.inf) == {}


async def test_slots_are_handed_over_in_order_and_a_raised_limit_lets_in_who_waits() -> None:
    gate, entered = RequestAdmission(1), []

    async def enter(number: int) -> None:
        await gate.enter()
        entered.append(number)

    held = await gate.enter()
    tasks = [asyncio.create_task(enter(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    gate.leave(held)
    gate.leave(held)  # a second time does nothing
    await asyncio.sleep(1)
    assert entered == [0]
    gate.limit = 3
    gate.hand_over()
    await asyncio.sleep(1)
    assert entered == [0, 2, 3]
    assert (gate.in_flight, gate.peak, gate.full) == (3, 3, True)
    gate.limit = None
    gate.hand_over()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == [0, 2, 3, 4]


async def test_a_slot_handed_to_a_task_that_is_cancelled_in_the_same_turn_is_not_lost() -> None:
    gate = RequestAdmission(1)
    held = await gate.enter()
    task = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.leave(held)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gate.in_flight == 0
