"""The calls for GPU reward models as a user writes them. Checked by mypy and pyright, never run."""

# pyright: strict
from __future__ import annotations

from typing import assert_type

from qreward import (
    BatchResult,
    Endpoint,
    ListCodec,
    MergeLimits,
    QRewardClient,
    Result,
    RewardModel,
    RewardScore,
    ServerKind,
    SyncQRewardClient,
    register_kind,
)

ENDPOINT = Endpoint("http://gpu-0:8000", kind="tei", reward=RewardModel(label="helpfulness"))
PAIRS = [("6 x 7?", "42"), ("6 x 7?", "41")]


class AcmeReward(ListCodec):
    path = "/reward"
    native = True
    member = "texts"
    rows_in = "rewards"
    limits = MergeLimits(items=64)


def use_a_kind_of_ones_own() -> None:
    assert_type(register_kind(ServerKind("acme", {"score": AcmeReward}, probe=("/health",))), None)
    register_kind(ServerKind("acme", {"score": {"": AcmeReward, "pooling": AcmeReward}}))
    Endpoint("http://gpu-0:8000", kind="acme")


async def use() -> None:
    async with QRewardClient([ENDPOINT]) as client:
        assert_type(await client.score("6 x 7?", "42", model="rm"), RewardScore)
        batch = await client.batch_score(PAIRS, model="rm", timeout=60)
        assert_type(batch, BatchResult[RewardScore])
        assert_type(batch[0], Result[RewardScore])
        assert_type(await client.classify("42", model="rm"), dict[str, float])
        assert_type(await client.rerank("6 x 7?", ["42", "41"], model="rm"), list[float])


def use_blocking() -> None:
    with SyncQRewardClient([ENDPOINT]) as client:
        assert_type(client.score("6 x 7?", "42", model="rm"), RewardScore)
        assert_type(client.batch_score(PAIRS, model="rm"), BatchResult[RewardScore])
