"""Over real sockets, where a tenth of what judges are asked goes wrong: every item is a verdict or an error that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from qreward import QRewardClient
from qreward.errors import RequestError
from qreward.judge import Judge, Verdict
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

ITEMS = [(f"What is {number} x 3?", str(3 * number), str(3 * number)) for number in range(100)]
"""Every candidate is right, so that a reward of 0 could only be made up."""
QUICK = Latency(base=0.005)


async def until(condition: Callable[[], bool]) -> None:
    end = monotonic() + 30
    while not condition() and monotonic() < end:  # noqa: ASYNC110 - the servers have no event
        await asyncio.sleep(0.01)


def test_batches_and_single_calls_end_in_verdicts_and_typed_errors_and_no_reward_is_made_up() -> None:
    async def run() -> None:
        faults = dict.fromkeys(("error_500", "error_503", "reset", "truncated", "error_in_200"), 0.02)
        places = {"a": 8, "b": 4}
        fakes = FakeFleet(
            FakeEndpoint(name, responder="judge", latency=QUICK, max_concurrency=most, faults=Faults(seed=most, **faults))  # type: ignore[arg-type]
            for name, most in places.items()
        )
        async with fakes, QRewardClient(fakes.endpoints) as client:
            judge = Judge(client, model="judge-7b", scale=(0, 1))
            batch = await judge.batch_score(ITEMS, timeout=60)
            calls = (judge.score(f"again: {prompt}", response, reference=reference, timeout=60) for prompt, response, reference in ITEMS)
            single = await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: all(fakes.seen(name).in_flight == 0 for name in places))
            seen = [fakes.seen(name) for name in places]
        assert all(result.attempts for result in batch if not result.ok)
        outcomes: list[Any] = [*(result.value if result.ok else result.error for result in batch), *single]
        verdicts = [outcome for outcome in outcomes if isinstance(outcome, Verdict)]
        assert [outcome for outcome in outcomes if not isinstance(outcome, Verdict | RequestError)] == []
        assert {verdict.score for verdict in verdicts} == {1.0}
        assert len(verdicts) >= 1.9 * len(ITEMS)
        assert [each.in_flight for each in seen] == [0, 0]
        assert any(each.errors or each.rejected for each in seen)

    asyncio.run(run())


def test_votes_that_hang_are_cancelled_upstream_when_the_others_have_settled_it() -> None:
    async def run() -> None:
        good = FakeEndpoint("good", models=["good-*"], responder="judge", latency=QUICK)
        stuck = FakeEndpoint("stuck", models=["stuck"], responder="judge", faults=Faults(hang=1.0))
        async with FakeFleet([good, stuck]) as fakes, QRewardClient(fakes.endpoints, hedge=None) as client:
            judge = Judge(client, model=("good-1", "good-2", "stuck"), scale=(0, 1))
            batch = await judge.batch_score(ITEMS[:20], timeout=60)
            await until(lambda: fakes.seen("stuck").in_flight == 0)
            assert [verdict.score for verdict in batch.values()] == [1.0] * 20
            assert fakes.seen("good").answered == 40
            assert fakes.seen("stuck").in_flight == 0
            assert fakes.seen("stuck").disconnects == fakes.seen("stuck").requests

    asyncio.run(run())
