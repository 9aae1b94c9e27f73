"""The blocking client as a user writes it. Checked by mypy and pyright, never run."""

# pyright: strict
from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from qreward import BatchResult, Endpoint, Priority, Progress, Result, SyncQRewardClient

Message = dict[str, str]
ASK: list[Message] = [{"role": "user", "content": "6 x 7?"}]


def lazily() -> Iterator[list[Message]]:
    yield ASK


def use() -> None:
    with SyncQRewardClient([Endpoint("http://gpu-0:8000/v1")], timeout=60) as client:
        assert_type(client, SyncQRewardClient)
        assert_type(client.chat_completion(ASK, model="judge-7b", temperature=0, priority=Priority.HIGH), ChatCompletion)
        assert_type(client.embeddings("6 x 7?", model="embedder"), CreateEmbeddingResponse)
        batch = client.batch_chat_completion(lazily(), model="judge-7b", progress=show)
        assert_type(batch, BatchResult[ChatCompletion])
        assert_type(batch[0], Result[ChatCompletion])
    assert_type(SyncQRewardClient.from_config("qreward.yaml"), SyncQRewardClient)
    assert_type(SyncQRewardClient.from_env(), SyncQRewardClient)
    client.close()


def show(progress: Progress) -> None:
    assert_type(progress.done, int)
    assert_type(progress.cost, float | None)


async def wrong() -> None:
    async with SyncQRewardClient.from_env():  # type: ignore[attr-defined]  # pyright: ignore
        pass


def wrong_calls(client: SyncQRewardClient) -> None:
    client.chat_completion(ASK, model="judge-7b", timeout="soon")  # type: ignore[arg-type]  # pyright: ignore
    client.chat_completion(ASK, model="judge-7b", temprature=0)  # type: ignore[call-arg]  # pyright: ignore
    client.batch_score([("6 x 7?", "42")])  # type: ignore[call-arg]  # pyright: ignore
    client.add_endpoint(7)  # type: ignore[arg-type]  # pyright: ignore
    SyncQRewardClient([], time_out=3)  # type: ignore[call-arg]  # pyright: ignore
