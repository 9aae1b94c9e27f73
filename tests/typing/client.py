"""The client, awaited and blocking, as a user writes it. Checked by mypy and pyright, never run."""

# pyright: strict
from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import assert_type

from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from qreward import (
    BatchResult,
    Comparison,
    Endpoint,
    ListCodec,
    LoadBalanceStrategy,
    MergeLimits,
    Priority,
    Progress,
    QRewardClient,
    QRewardError,
    RateLimited,
    Result,
    RewardModel,
    RewardScore,
    ServerKind,
    SyncJudge,
    SyncQRewardClient,
    Verdict,
    register_kind,
)

Message = dict[str, str]
ASK: list[Message] = [{"role": "user", "content": "6 x 7?"}]
ENDPOINT = Endpoint("http://gpu-0:8000", kind="tei", reward=RewardModel(label="helpfulness"))
PAIRS = [("6 x 7?", "42"), ("6 x 7?", "41")]


def make() -> None:
    assert_type(QRewardClient([ENDPOINT]), QRewardClient)
    assert_type(QRewardClient.from_config(Path("qreward.yaml")), QRewardClient)
    assert_type(QRewardClient.from_config({"endpoints": [{"base_url": "http://gpu-0:8000/v1"}]}), QRewardClient)
    assert_type(QRewardClient.from_env(), QRewardClient)
    assert_type(SyncQRewardClient.from_config("qreward.yaml"), SyncQRewardClient)
    assert_type(SyncQRewardClient.from_env(), SyncQRewardClient)


def lazily() -> Iterator[list[Message]]:
    yield ASK


async def as_they_come() -> AsyncIterator[list[Message]]:
    yield ASK


async def awaited() -> str | None:
    async with QRewardClient([ENDPOINT]) as client:
        assert_type(client, QRewardClient)
        completion = await client.chat_completion(ASK, model="judge-7b", temperature=0, max_tokens=8, timeout=30, priority=Priority.HIGH)
        assert_type(completion, ChatCompletion)
        assert_type(await client.embeddings("6 x 7?", model="embedder"), CreateEmbeddingResponse)
        batch = await client.batch_chat_completion([ASK, ASK], model="judge-7b", temperature=0, timeout=60, deadline=300, priority=2)
        assert_type(batch, BatchResult[ChatCompletion])
        assert_type(await client.batch_chat_completion(lazily(), model="judge-7b"), BatchResult[ChatCompletion])
        assert_type(await client.batch_chat_completion(as_they_come(), model="judge-7b"), BatchResult[ChatCompletion])
        for result in batch:
            assert_type(result, Result[ChatCompletion])
            if result.ok:
                assert_type(result.value, ChatCompletion)
                assert_type(result.text, str)
            elif isinstance(result.error, RateLimited):
                assert_type(result.error.status_code, int | None)
        assert_type(batch.errors, dict[int, QRewardError])
        assert_type(batch.raise_for_errors(), BatchResult[ChatCompletion])
        assert_type(await client.score("6 x 7?", "42", model="rm"), RewardScore)
        assert_type(await client.batch_score(PAIRS, model="rm", timeout=60), BatchResult[RewardScore])
        assert_type(await client.classify("42", model="rm"), dict[str, float])
        assert_type(await client.rerank("6 x 7?", ["42", "41"], model="rm"), list[float])
    await client.aclose()
    return completion.choices[0].message.content


async def the_fleet(client: QRewardClient) -> None:
    client.register_model_route("judge-*", ["gpu-0", "gpu-1"], strategy=LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN, weights={"gpu-0": 3})
    client.add_endpoint(Endpoint("http://gpu-2:8000/v1", name="gpu-2"))
    client.mark_unhealthy("gpu-0")
    client.mark_healthy("gpu-0")
    client.remove_endpoint("gpu-2")
    client.list_routes()
    client.stats()


def show(progress: Progress) -> None:
    assert_type(progress.done, int)
    assert_type(progress.cost, float | None)


def blocking() -> None:
    with SyncQRewardClient([ENDPOINT], timeout=60) as client:
        assert_type(client, SyncQRewardClient)
        assert_type(client.chat_completion(ASK, model="judge-7b", temperature=0, priority=Priority.HIGH), ChatCompletion)
        assert_type(client.embeddings("6 x 7?", model="embedder"), CreateEmbeddingResponse)
        batch = client.batch_chat_completion(lazily(), model="judge-7b", progress=show)
        assert_type(batch, BatchResult[ChatCompletion])
        assert_type(batch[0], Result[ChatCompletion])
        assert_type(client.score("6 x 7?", "42", model="rm"), RewardScore)
        assert_type(client.batch_score(PAIRS, model="rm"), BatchResult[RewardScore])
    client.close()
    with SyncJudge(client, model="judge-7b", temperature=0) as judge:
        assert_type(judge.score("6 x 7?", "42", reference="42", timeout=30), Verdict)
        assert_type(judge.compare("6 x 7?", "42", "41"), Comparison)
        assert_type(judge.batch_score([("6 x 7?", "42")], deadline=60, progress=True), BatchResult[Verdict])
        assert_type(judge.batch_compare([("6 x 7?", "42", "41")]), BatchResult[Comparison])


async def wrong(client: SyncQRewardClient, judge: SyncJudge) -> None:
    async with SyncQRewardClient.from_env():  # type: ignore[attr-defined]  # pyright: ignore
        pass
    client.chat_completion(ASK, model="judge-7b", timeout="soon")  # type: ignore[arg-type]  # pyright: ignore
    client.chat_completion(ASK, model="judge-7b", temprature=0)  # type: ignore[call-arg]  # pyright: ignore
    client.batch_score([("6 x 7?", "42")])  # type: ignore[call-arg]  # pyright: ignore
    client.add_endpoint(7)  # type: ignore[arg-type]  # pyright: ignore
    SyncQRewardClient([], time_out=3)  # type: ignore[call-arg]  # pyright: ignore
    judge.score("6 x 7?")  # type: ignore[call-arg]  # pyright: ignore
    judge.batch_score([("6 x 7?", "42")], time_out=3)  # type: ignore[call-arg]  # pyright: ignore


class AcmeReward(ListCodec):
    path = "/reward"
    native = True
    member = "texts"
    rows_in = "rewards"
    limits = MergeLimits(items=64)


def a_kind_of_ones_own() -> None:
    assert_type(register_kind(ServerKind("acme", {"score": AcmeReward}, probe=("/health",))), None)
    register_kind(ServerKind("acme", {"score": {"": AcmeReward, "pooling": AcmeReward}}))
    Endpoint("http://gpu-0:8000", kind="acme")
