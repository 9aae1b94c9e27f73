"""The calls for GPU reward models as a user writes them. Checked by mypy and pyright, never run."""

# pyright: strict
from __future__ import annotations

from typing import assert_type

from qreward import BatchResult, Endpoint, QRewardClient, Result, RewardModel, Score, SyncQRewardClient

ENDPOINT = Endpoint("http://gpu-0:8000", kind="tei", reward=RewardModel(label="helpfulness"))
PAIRS = [("6 x 7?", "42"), ("6 x 7?", "41")]


async def use() -> None:
    async with QRewardClient([ENDPOINT]) as client:
        assert_type(await client.score("6 x 7?", "42", model="rm"), Score)
        batch = await client.batch_score(PAIRS, model="rm", timeout=60)
        assert_type(batch, BatchResult[Score])
        assert_type(batch[0], Result[Score])
        assert_type(await client.classify("42", model="rm"), dict[str, float])
        assert_type(await client.rerank("6 x 7?", ["42", "41"], model="rm"), list[float])


def use_blocking() -> None:
    with SyncQRewardClient([ENDPOINT]) as client:
        assert_type(client.score("6 x 7?", "42", model="rm"), Score)
        assert_type(client.batch_score(PAIRS, model="rm"), BatchResult[Score])
