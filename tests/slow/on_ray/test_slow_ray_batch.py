"""``@batch`` methods of a class that Ray pickles by value, as it does with classes of a script: as an actor and as a Serve deployment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qreward import batch

pytestmark = [pytest.mark.timeout(300), pytest.mark.real_time(240), pytest.mark.filterwarnings("ignore")]  # what Ray warns of is not ours
ACTOR = {"num_cpus": 0.1}


def model_class() -> type[Any]:
    """A class that no other process can import."""

    class Base:
        def __init__(self, plus: int) -> None:
            self.plus = plus

    class Model(Base):
        def __init__(self, plus: int) -> None:
            super().__init__(plus)
            type(self).score.set_batch_wait_timeout_s(0.2)

        @batch(max_batch_size=4)
        async def score(self, items: list[int], scale: Any = 1) -> list[tuple[int, int]]:
            return [((item + self.plus) * scale, len(items)) for item in items]

        @batch(max_batch_size=4)
        async def pieces(self, items: list[int]) -> Any:
            for number in range(3):
                yield [(item + self.plus, number) for item in items]

        async def __call__(self, item: int) -> tuple[int, int]:
            return await self.score(item)

        async def read(self, item: int) -> list[tuple[int, int]]:
            return [piece async for piece in self.pieces(item)]

        async def counted(self) -> tuple[int, int]:
            stats = self.score.stats()
            return stats.items, stats.batches

    return Model


async def test_a_class_with_batched_methods_can_be_an_actor(cluster: Any) -> None:
    actor = cluster.remote(**ACTOR)(model_class()).remote(10)
    assert await asyncio.gather(*(actor.score.remote(item) for item in range(4))) == [(10 + item, 4) for item in range(4)]
    assert await actor.read.remote(1) == [(11, 0), (11, 1), (11, 2)]
    assert await actor.counted.remote() == (4, 1)
    cluster.kill(actor)


async def test_a_class_with_batched_methods_can_be_a_deployment(serving: Any) -> None:
    deployed = serving.deployment(max_ongoing_requests=100, ray_actor_options=ACTOR)(model_class())
    handle = serving.run(deployed.bind(20), name="batched", route_prefix=None)

    assert await asyncio.gather(*(handle.remote(item) for item in range(4))) == [(20 + item, 4) for item in range(4)]
    assert await handle.read.remote(1) == [(21, 0), (21, 1), (21, 2)]
    serving.delete("batched")
