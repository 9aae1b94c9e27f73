"""The client as a user writes it. Checked by mypy and pyright, never run."""

# pyright: strict
from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import assert_type

from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from qreward import BatchResult, Endpoint, Limits, LoadBalanceStrategy, Priority, QRewardClient, QRewardError, RateLimited, Result

Message = dict[str, str]
ASK: list[Message] = [{"role": "user", "content": "6 x 7?"}]


def make() -> None:
    assert_type(QRewardClient([Endpoint("http://gpu-0:8000/v1")]), QRewardClient)
    assert_type(QRewardClient([Endpoint("http://gpu-0:8000/v1", models=["judge-*"], limits=Limits(max_concurrency=64))]), QRewardClient)
    assert_type(QRewardClient.from_config("qreward.yaml"), QRewardClient)
    assert_type(QRewardClient.from_config(Path("qreward.yaml")), QRewardClient)
    assert_type(QRewardClient.from_config({"endpoints": [{"base_url": "http://gpu-0:8000/v1"}]}), QRewardClient)
    assert_type(QRewardClient.from_env(), QRewardClient)


def lazily() -> Iterator[list[Message]]:
    yield ASK


async def as_they_come() -> AsyncIterator[list[Message]]:
    yield ASK


async def one_call(client: QRewardClient) -> str | None:
    completion = await client.chat_completion(ASK, model="judge-7b", temperature=0, max_tokens=8, timeout=30, priority=Priority.HIGH)
    assert_type(completion, ChatCompletion)
    embedded = await client.embeddings("6 x 7?", model="embedder")
    assert_type(embedded, CreateEmbeddingResponse)
    return completion.choices[0].message.content


async def many_calls(client: QRewardClient) -> None:
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


async def the_fleet(client: QRewardClient) -> None:
    client.register_model_route("judge-*", ["gpu-0", "gpu-1"], strategy=LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN, weights={"gpu-0": 3})
    client.add_endpoint(Endpoint("http://gpu-2:8000/v1", name="gpu-2"))
    client.mark_unhealthy("gpu-0")
    client.mark_healthy("gpu-0")
    client.remove_endpoint("gpu-2")
    client.list_routes()
    client.stats()


async def close() -> None:
    async with QRewardClient([Endpoint("http://gpu-0:8000/v1")]) as client:
        assert_type(client, QRewardClient)
    await client.aclose()
