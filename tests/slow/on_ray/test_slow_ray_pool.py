"""ScorerPool on a real Ray: batches formed here, scored there, and processes killed in the midst."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shared_tools
from ray_scorers import AwaitedNoting, Broken, Noting, noted, workers

from qreward.errors import RequestTimeout
from qreward.integrations.ray import ActorDied, ScorerPool
from qreward.integrations.ray import pool as pool_module

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.timeout(300), pytest.mark.real_time(240)]
until = partial(shared_tools.until, seconds=120)
SMALL: dict[str, Any] = {"num_cpus": 0.1}


def pool_of(scorer: Any, notes: Path, seconds: float = 0.0, **settings: Any) -> ScorerPool:
    return ScorerPool(scorer, backend="ray", init_args=(str(notes), seconds), **SMALL | settings)


def kinds(outcomes: list[Any]) -> list[Any]:
    return [type(one) if isinstance(one, BaseException) else one for one in outcomes]


@pytest.mark.parametrize("scorer", [Noting, AwaitedNoting])
async def test_batches_are_formed_in_the_caller_and_results_are_right_and_in_order(killings: Path, scorer: Any) -> None:
    async with pool_of(scorer, killings, 0.01, actors=2) as pool, pool.queue(max_batch_size=16) as queue:
        await pool([])
        await until(lambda: pool.stats().ready == 2)
        texts = ["x" * (at % 50) for at in range(400)]
        assert await asyncio.gather(*map(queue.submit, texts)) == [at % 50 for at in range(400)]
        sizes = [len(batch) for batch in noted(killings)]
        assert sum(sizes) == 400
        assert max(sizes) == 16
        assert len(sizes) <= 30
        assert len(workers(killings)) == 2
    assert (killings / "closed").exists()


async def test_errors_of_items_and_of_batches_come_back_as_they_were_raised(killings: Path) -> None:
    async with pool_of(Noting, killings) as pool:
        assert kinds(await pool(["a", "bad", "cc"])) == [1, ValueError, 2]
        with pytest.raises(LookupError, match="worse") as caught:
            await pool(["a", "worse"])
        assert "ray_scorers.py" in caught.value.__notes__[0]
        assert pool.stats().deaths == 0


async def test_ten_thousand_scores_with_an_actor_killed_in_the_midst_lose_nothing(killings: Path) -> None:
    async with pool_of(Noting, killings, 0.02, actors=2) as pool, pool.queue(max_batch_size=100) as queue:
        outcomes: Counter[int] = Counter()

        async def score(at: int) -> int:
            found = await queue.submit("x" * (at % 211) + f"#{at}")
            outcomes[at] += 1
            return found

        calls = [asyncio.ensure_future(score(at)) for at in range(10_000)]
        await until(lambda: len(outcomes) > 2_000)
        os.kill(workers(killings)[0], signal.SIGKILL)
        await until(lambda: len(outcomes) > 6_000)
        os.kill(workers(killings)[-1], signal.SIGKILL)
        assert await asyncio.gather(*calls) == [at % 211 + 1 + len(str(at)) for at in range(10_000)]
        assert outcomes == Counter(range(10_000))
        assert pool.stats().deaths == 2
        assert pool.stats().poisonous == 0


async def test_of_a_batch_with_a_poisonous_item_only_that_item_fails(killings: Path) -> None:
    async with pool_of(Noting, killings, actors=2) as pool, pool.queue(max_batch_size=8) as queue:
        texts = ["poison" if at == 3 else "bad" if at == 5 else "x" * at for at in range(24)]
        outcomes = await asyncio.gather(*map(queue.submit, texts), return_exceptions=True)
        assert kinds(outcomes) == [ActorDied if at == 3 else ValueError if at == 5 else at for at in range(24)]
        assert "worker process has died" in str(outcomes[3])
        assert sum("poison" in batch for batch in noted(killings)) == 5  # 8, 8, 4, 2, 1


async def test_a_class_that_cannot_be_made_is_told_with_its_reason() -> None:
    async with ScorerPool(Broken, backend="ray", **SMALL) as pool:
        with pytest.raises(ActorDied, match="OSError: no weights"):
            await pool(["a"])
        assert pool.stats().lost == 1


async def test_a_caller_that_leaves_has_its_batch_cancelled_in_the_actor(killings: Path) -> None:
    async with pool_of(AwaitedNoting, killings) as pool:
        call = asyncio.ensure_future(pool(["wait"]))
        await until(lambda: noted(killings))
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        await until((killings / "cancelled").exists)
        assert await pool(["a"]) == [1]
        assert pool.stats().deaths == 0
        assert len(workers(killings)) == 1


async def test_a_batch_that_hangs_fails_for_its_time_and_its_actor_is_killed(killings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "GRACE", 0.1)

    async with pool_of(Noting, killings, 3600.0, batch_timeout=1.0) as pool:
        with pytest.raises(RequestTimeout, match="batch_timeout of 1 s"):
            await pool(["a"])
        await until(lambda: pool.stats().deaths == 1)


async def test_resources_that_are_not_there_are_an_error_in_time() -> None:
    async with ScorerPool(Noting, backend="ray", init_args=("/tmp",), start_timeout=0.5, resources={"unicorn": 1}) as pool:
        with pytest.raises(ActorDied, match="are there the resources"):
            await pool(["a"])


async def test_large_batches_go_through_the_store_while_the_loop_turns(killings: Path) -> None:
    def ends(blobs: list[bytes]) -> list[Any]:
        return [(len(blob), blob[-1]) for blob in blobs]

    async with ScorerPool(ends, backend="ray", **SMALL) as pool:
        await pool([b"x"])
        blobs = [bytes([at]) * 2**20 for at in range(20)]
        turns = 0
        call = asyncio.ensure_future(pool(blobs))
        while not call.done():
            turns += 1
            await asyncio.sleep(0.001)
        assert call.result() == [(2**20, at) for at in range(20)]
        assert turns > 3
