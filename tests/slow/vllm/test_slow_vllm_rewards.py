"""vLLM with reward models, classifiers and embedding models: our numbers are those of a forward pass of the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from _vllm import KEY, Replica, forward
from vllm_tools import check, client_of

from qreward import AuthenticationFailed, BadRequest, QRewardClient, RewardModel

pytestmark = [pytest.mark.timeout(900), pytest.mark.real_time]
ITEMS = [(f"What is {number} + 2?", f"It is {number + 2}.") for number in range(120)]
JOINED = "{prompt} {response}"
FEW = 12
CLOSE = 0.001
"""How far a number may be off, as a share of the spread: the server sums in another order than the forward pass."""
LABELS = ["bad", "fair", "good"]


def asked(replica: Replica, question: Callable[[QRewardClient], Awaitable[Any]], **settings: Any) -> tuple[Any, int]:
    """Return what a client says to a question, and how many requests it sent."""

    async def main() -> tuple[Any, int]:
        async with client_of(replica, of=settings) as client:
            answer = await question(client)
            return answer, sum(each.sent for each in client.stats().values())

    return asyncio.run(main())


def close(found: list[float], wanted: list[float]) -> None:
    spread = max(wanted) - min(wanted)
    assert found == pytest.approx(wanted, abs=CLOSE * spread), (spread, list(zip(found, wanted, strict=True)))


@pytest.mark.parametrize("route", [None, "classify", "pooling"])
def test_rewards_of_joined_texts_are_those_of_the_model_whether_merged_or_not(reward: Replica, route: Any) -> None:
    wanted = [row[0] for row in forward("reward", [JOINED.format(prompt=prompt, response=response) for prompt, response in ITEMS[:FEW]])]
    settings = {"reward": RewardModel(template=JOINED, route=route)}
    merged, requests = asked(reward, lambda client: client.batch_score(ITEMS, model="reward"), **settings)
    assert not merged.errors
    assert requests < len(ITEMS) / 4
    single, _ = asked(reward, lambda client: client.score(*ITEMS[1], model="reward"), **settings)
    close([float(score) for score in merged.scores()[:FEW]], wanted)
    assert float(single) == pytest.approx(float(merged.scores()[1]), abs=CLOSE * (max(wanted) - min(wanted)))


def test_rewards_of_conversations_are_those_of_the_model(reward: Replica) -> None:
    chats = [[{"role": "user", "content": prompt}, {"role": "assistant", "content": response}] for prompt, response in ITEMS[:FEW]]
    wanted = [row[0] for row in forward("reward", chats)]
    batch, _ = asked(reward, lambda client: client.batch_score(ITEMS[:FEW], model="reward"))
    assert not batch.errors
    close([float(score) for score in batch.scores()], wanted)


def test_a_ranking_orders_documents_as_their_scores_do(reward: Replica) -> None:
    documents = [response for _, response in ITEMS[:FEW]]
    ranks, _ = asked(reward, lambda client: client.rerank("What is it?", documents, model="reward"))
    pairs = [("What is it?", document) for document in documents]
    scores, _ = asked(reward, lambda client: client.batch_score(pairs, model="reward"), reward=RewardModel(route="score", activation=True))
    assert not scores.errors
    assert ranks == pytest.approx([float(score) for score in scores.scores()], abs=CLOSE)


def test_classes_are_those_of_the_model_by_name(classes: Replica) -> None:
    texts = [f"{prompt} {response}" for prompt, response in ITEMS[:FEW]]
    rows = forward("classes", texts)
    settings = {"reward": RewardModel(labels=tuple(LABELS))}
    batch, requests = asked(classes, lambda client: client.batch_classify(texts, model="classes"), **settings)
    assert not batch.errors
    assert requests < FEW
    for found, row in zip(batch.values(), rows, strict=True):
        whole = softmax(row)
        assert list(found) == LABELS
        assert list(found.values()) == pytest.approx(whole, abs=CLOSE)


def softmax(row: list[float]) -> list[float]:
    from math import exp, fsum

    weights = [exp(value - max(row)) for value in row]
    return [weight / fsum(weights) for weight in weights]


def test_embeddings_are_the_last_hidden_state_of_the_model(embedder: Replica) -> None:
    texts = [f"{prompt} {response}" for prompt, response in ITEMS[:FEW]]
    rows = forward("embedder", texts)
    batch, requests = asked(embedder, lambda client: client.batch_embeddings(texts, "embedder"))
    assert not batch.errors
    assert requests < FEW
    for result, row in zip(batch, rows, strict=True):
        vector = result.value.data[0].embedding
        assert sum(a * b for a, b in zip(vector, row, strict=True)) == pytest.approx(1, abs=CLOSE)  # the cosine


def test_an_overlong_item_fails_alone(reward: Replica) -> None:
    items = [*ITEMS[:50], ("long", "word " * 5000), *ITEMS[50:60]]
    batch, _ = asked(reward, lambda client: client.batch_score(items, model="reward", timeout=60), reward=RewardModel(template=JOINED))
    assert list(batch.errors) == [50]
    assert isinstance(batch.errors[50], BadRequest)


def test_an_unknown_model_and_a_wrong_key_fail_a_list_at_once(reward: Replica) -> None:
    settings = {"reward": RewardModel(template=JOINED)}
    batch, requests = asked(reward, lambda client: client.batch_score(ITEMS, model="nope", timeout=60), **settings)
    assert {type(error) for error in batch.errors.values()} == {BadRequest}
    assert requests < len(ITEMS) / 4  # no list was split
    # vLLM guards the paths below /v1 only: /classify takes every key
    batch, _ = asked(reward, lambda client: client.batch_embeddings(["a", "b"], "reward", timeout=30), api_key="wrong")
    assert {type(error) for error in batch.errors.values()} == {AuthenticationFailed}


def test_a_chat_sent_to_a_reward_model_is_an_error(reward: Replica) -> None:
    async def question(client: QRewardClient) -> Any:
        return (await client.batch_chat_completion([[{"role": "user", "content": "x"}]], model="reward", timeout=30))[0].error

    error, requests = asked(reward, question)
    assert error is not None
    assert requests == 1, error


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_check_finds_nothing_to_change(reward: Replica, folder: Path, kind: str) -> None:
    status, output = check(folder, base_url=reward.url, api_key=KEY, kind=kind, models=["reward"])
    assert status == 0, output
    assert "reward" in output
