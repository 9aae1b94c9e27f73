"""``Endpoint.actors`` on a real Ray: actors and a pool in one route, and an actor killed in the midst of a bulk."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shared_tools
from ray_scorers import Noting

from qreward import Endpoint, QRewardClient
from qreward.integrations.ray import ScorerPool

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.timeout(300), pytest.mark.real_time(240)]

until = partial(shared_tools.until, seconds=120)


async def test_a_killed_actor_is_a_retry_at_the_other_actors_and_the_pool_and_no_item_is_lost(killings: Path) -> None:
    import ray

    kind: Any = ray.remote(Noting)
    handles = [kind.options(num_cpus=0.1).remote(str(killings), 0.05) for _ in range(2)]
    actors = [
        Endpoint.actors(handle, method="__call__", name=f"actor-{number}", models=["rm"], max_batch_size=8)
        for number, handle in enumerate(handles)
    ]
    async with ScorerPool(Noting, backend="ray", init_args=(str(killings), 0.05), num_cpus=0.1) as pool:
        shared = Endpoint.actors(pool, name="pool", models=["rm"], max_batch_size=8)
        async with QRewardClient([*actors, shared]) as client:
            texts = ["x" * (number % 50) for number in range(1, 601)]
            bulk = asyncio.create_task(client.batch_score([text or "y" for text in texts], "rm", timeout=120))
            await until(lambda: client.stats()["actor-0"].answered > 0)
            ray.kill(handles[0])
            batch = await bulk
            stats = client.stats()
    assert batch.scores() == [float(number % 50 or 1) for number in range(1, 601)]
    assert {result.endpoint for result in batch} == {"actor-0", "actor-1", "pool"}
    assert stats["actor-0"].answered < stats["actor-1"].answered
