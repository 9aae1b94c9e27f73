"""Items of a judge whose endpoints are all dead end as a whole, about one timeout later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from judge_tools import JudgeWire, Sent, endpoint, judging, now, score

from qreward.errors import ConnectionFailed, RequestTimeout
from qreward.scheduler.outcome import Failure, FailureKind

MANY = 600


def items(count: int) -> list[tuple[str, str]]:
    return [(f"q{number}", f"a{number}") for number in range(count)]


def refused(name: str) -> Failure:
    return Failure(FailureKind.UNREACHABLE, ConnectionFailed(f"endpoint {name!r} refused the connection", endpoint=name))


async def refuses(sent: Sent) -> Any:
    return refused(sent.endpoint)


async def hangs(_: Sent) -> Any:
    await asyncio.sleep(10**6)


async def one_by_one(given: list[Any]) -> AsyncIterator[Any]:
    for item in given:
        yield item


def batched(script: Any, given: Any, *endpoints: Any, timeout: float, **settings: Any) -> tuple[Any, float, JudgeWire]:
    ended_at = 0.0

    async def use(judge: Any) -> Any:
        nonlocal ended_at
        batch = await judge.batch_score(given, timeout=timeout)
        ended_at = now()
        return batch

    wire = JudgeWire(script)
    return judging(wire, use, *endpoints, **settings), ended_at, wire


def test_all_items_fail_about_one_timeout_after_the_endpoints_have_died() -> None:
    """A quarter of the timeout more, if one was sent last; where endpoints hang, that is known after one timeout more."""
    for kind, script, samples, after in (
        (list, refuses, 1, 5),
        (iter, refuses, 1, 5),
        (one_by_one, refuses, 1, 5),
        (iter, refuses, 3, 5),
        (list, hangs, 1, 10),
    ):
        fleet = endpoint("a", 8), endpoint("b", 8)
        batch, ended_at, wire = batched(script, kind(items(MANY)), *fleet, timeout=5, samples=samples)
        assert after <= ended_at < after + 1.5, (kind, script, samples)
        assert (len(batch), len(batch.errors)) == (MANY, MANY)
        if script is refuses:
            assert {type(error) for error in batch.errors.values()} == {RequestTimeout}
            assert len(wire.sent) < 100


def test_a_batch_is_rescued_by_an_endpoint_that_returns() -> None:
    async def returns(sent: Sent) -> Any:
        return refused(sent.endpoint) if now() < 9 else score(5)

    batch, _, _ = batched(returns, iter(items(MANY)), endpoint("a", 8), endpoint("b", 8), timeout=20)
    assert batch.stats.ok == MANY


def test_of_two_models_one_of_which_is_dead_no_item_waits_for_longer_than_its_timeout() -> None:
    async def one_dead(sent: Sent) -> Any:
        return refused(sent.endpoint) if sent.endpoint == "b" else score(5)

    for kind in (list, iter, one_by_one):
        endpoints = endpoint("a", 8, models=["x"]), endpoint("b", 8, models=["y"])
        batch, ended_at, _ = batched(one_dead, kind(items(MANY)), *endpoints, timeout=5, model=["x", "y"])
        assert 5 <= ended_at < 6.5
        assert (len(batch), len(batch.errors)) == (MANY, MANY)
