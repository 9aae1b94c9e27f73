"""Over real sockets, where a tenth of what judges are asked goes wrong: every item is a verdict or an error that says why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qreward import QRewardClient
from qreward.errors import QRewardError, RequestError, RequestTimeout
from qreward.judge import Judge, Verdict
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

COUNT = 150


def items() -> list[tuple[str, str, str]]:
    """Every candidate is right, so that a reward of 0 could only be made up."""
    return [(f"What is {number} x 3?", str(3 * number), str(3 * number)) for number in range(COUNT)]


def fleet(**faults: float) -> FakeFleet:
    quick = Latency(base=0.005)
    return FakeFleet([
        FakeEndpoint("a", responder="judge", latency=quick, max_concurrency=8, faults=Faults(seed=1, **faults)),
        FakeEndpoint("b", responder="judge", latency=quick, max_concurrency=4, faults=Faults(seed=2, **faults)),
    ])  # fmt: skip


def judged(use: Any, **faults: float) -> Any:
    async def run() -> Any:
        async with fleet(**faults) as fakes, QRewardClient(fakes.endpoints) as client:
            judge = Judge(client, model="judge-7b", scale=(0, 1))
            outcome = await use(judge)
            await asyncio.sleep(0.05)  # for what was cancelled to be seen
            return outcome, {name: fakes.seen(name) for name in fakes.names}

    return asyncio.run(run())


@pytest.mark.parametrize(
    "faults", [{"error_500": 0.05, "hang": 0.05}, {"error_503": 0.05, "reset": 0.05}, {"truncated": 0.05, "error_in_200": 0.05}]
)
def test_a_batch_ends_in_verdicts_and_typed_errors_and_no_reward_is_made_up(faults: dict[str, float]) -> None:
    batch, seen = judged(lambda judge: judge.batch_score(items(), timeout=20), **faults)
    assert len(batch) == COUNT
    for result in batch:
        if result.ok:
            assert isinstance(result.value, Verdict)
            assert result.value.score == 1.0
        else:
            assert isinstance(result.error, RequestError), result
            assert result.attempts
    assert batch.stats.ok >= 0.95 * COUNT
    assert sum(each.in_flight for each in seen.values()) == 0
    assert any(each.errors or each.rejected for each in seen.values())


def test_single_calls_end_so_too() -> None:
    async def use(judge: Judge) -> list[Any]:
        calls = (judge.score(prompt, response, reference=reference, timeout=20) for prompt, response, reference in items())
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes, seen = judged(use, error_500=0.05, hang=0.05)
    assert all(outcome.score == 1.0 if isinstance(outcome, Verdict) else isinstance(outcome, QRewardError) for outcome in outcomes)
    assert sum(isinstance(outcome, Verdict) for outcome in outcomes) >= 0.95 * COUNT
    assert sum(each.in_flight for each in seen.values()) == 0


def test_votes_that_hang_are_cancelled_upstream_when_the_others_have_settled_it() -> None:
    async def run() -> Any:
        fakes = FakeFleet([
            FakeEndpoint("good", models=["good-*"], responder="judge", latency=Latency(base=0.01)),
            FakeEndpoint("stuck", models=["stuck"], responder="judge", faults=Faults(hang=1.0)),
        ])  # fmt: skip
        async with fakes, QRewardClient(fakes.endpoints, hedge=None) as client:
            judge = Judge(client, model=("good-1", "good-2", "stuck"), scale=(0, 1))
            batch = await judge.batch_score(items()[:20], timeout=20)
            await asyncio.sleep(0.1)
            return batch, fakes.seen("good"), fakes.seen("stuck")

    batch, good, stuck = asyncio.run(run())
    assert [verdict.score for verdict in batch.values()] == [1.0] * 20
    assert good.answered == 40
    assert stuck.in_flight == 0
    assert stuck.disconnects == stuck.requests


def test_a_fleet_that_hangs_altogether_ends_every_item_at_its_time() -> None:
    async def use(judge: Judge) -> Any:
        return await judge.batch_score(items()[:10], timeout=0.3)

    batch, seen = judged(use, hang=1.0)
    assert all(isinstance(error, RequestTimeout) for error in batch.errors.values())
    assert len(batch.errors) == 10
    assert sum(each.in_flight for each in seen.values()) == 0
