"""Over real sockets, where a tenth of what judges are asked goes wrong: every item is a verdict or an error that says why."""

from __future__ import annotations

import asyncio
from typing import Any

from qreward import QRewardClient
from qreward.errors import RequestError, RequestTimeout
from qreward.judge import Judge, Verdict
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

COUNT = 100


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


def test_batches_and_single_calls_end_in_verdicts_and_typed_errors_and_no_reward_is_made_up() -> None:
    async def use(judge: Judge) -> list[Any]:
        batch = await judge.batch_score(items(), timeout=20)
        assert all(result.attempts for result in batch if not result.ok)
        calls = (judge.score(f"again: {prompt}", response, reference=reference, timeout=20) for prompt, response, reference in items())
        return [result.value if result.ok else result.error for result in batch] + await asyncio.gather(*calls, return_exceptions=True)

    kinds = ("error_500", "error_503", "reset", "truncated", "error_in_200")
    outcomes, seen = judged(use, **dict.fromkeys(kinds, 0.02))
    assert len(outcomes) == 2 * COUNT
    assert {type(outcome) for outcome in outcomes if not isinstance(outcome, RequestError)} == {Verdict}
    assert {outcome.score for outcome in outcomes if isinstance(outcome, Verdict)} == {1.0}
    assert sum(isinstance(outcome, Verdict) for outcome in outcomes) >= 1.9 * COUNT
    assert sum(each.in_flight for each in seen.values()) == 0
    assert any(each.errors or each.rejected for each in seen.values())


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
