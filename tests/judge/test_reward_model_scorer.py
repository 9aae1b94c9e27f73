"""A reward model with the face of a judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qreward import QRewardClient
from qreward.errors import ConfigError, QRewardError, RequestTimeout
from qreward.judge import RewardModelScorer, Scorer
from qreward.results import BatchInterrupted
from qreward.testing import FakeEndpoint, FakeFleet, Faults

PAIR = ("What is 6 x 7?", "42")


def used(use: Any, *fakes: FakeEndpoint, **settings: Any) -> Any:
    async def run() -> Any:
        async with FakeFleet(fakes or [FakeEndpoint("a", kind="openrlhf")]) as fleet, QRewardClient(fleet.endpoints) as client:
            scorer: Scorer = RewardModelScorer(client, "rm-7b", **settings)
            return await use(scorer, client)

    return asyncio.run(run())


def test_a_score_is_what_the_client_gives_as_a_verdict_with_one_vote() -> None:
    async def use(scorer: Scorer, client: QRewardClient) -> Any:
        return await scorer.score(*PAIR), await client.score(*PAIR, model="rm-7b")

    verdict, score = used(use)
    assert verdict.score == float(score)
    assert type(verdict.score) is float
    assert [(vote.score, vote.model, vote.verdict) for vote in verdict.votes] == [(float(score), "rm-7b", None)]
    assert verdict.text == ""


def test_the_tokens_of_a_score_are_in_its_verdict() -> None:
    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        return (await scorer.score(*PAIR)).usage, (await scorer.batch_score([PAIR]))[0].value.usage

    one, other = used(use, FakeEndpoint("a", kind="vllm"))
    assert one == other
    assert one
    assert one.total_tokens


def test_attributes_are_kept() -> None:
    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        verdict = await scorer.score([{"role": "user", "content": "hi"}], "42")
        batch = await scorer.batch_score([([{"role": "user", "content": "hi"}], "42")])
        return verdict.attributes, batch[0].value.attributes

    one, other = used(use, FakeEndpoint("n", kind="nim"))
    assert one
    assert one == other


def test_a_range_bounds_the_reward_and_without_one_it_is_as_it_was() -> None:
    async def use(scorer: Scorer, client: QRewardClient) -> Any:
        raw = float(await client.score(*PAIR, model="rm-7b"))
        return raw, (await scorer.score(*PAIR)).score, (await scorer.batch_score([PAIR]))[0].value.score

    raw, one, other = used(use, range=(100, 200))
    assert raw < 100
    assert (one, other) == (100.0, 100.0)
    with pytest.raises(ConfigError):
        RewardModelScorer(QRewardClient(["http://a/v1"]), "rm", range=(0, float("nan")))


def test_a_batch_takes_what_a_judge_takes_and_keeps_its_order() -> None:
    items: list[Any] = [PAIR, (*PAIR, "42"), {"prompt": "q", "response": "x"}, {"prompt": "q", "response": "x", "reference": "y"}]

    async def stream() -> AsyncIterator[Any]:
        for item in items:
            yield item

    async def use(scorer: Scorer, client: QRewardClient) -> Any:
        told: list[Any] = []
        one = await scorer.batch_score(items, on_result=told.append)
        other = await scorer.batch_score(stream())
        alone = [(await scorer.score(item[0], item[1])).score for item in items[:2]]
        return one, other, told, alone

    one, other, told, alone = used(use)
    assert [verdict.score for verdict in one.values()] == [verdict.score for verdict in other.values()]
    assert [verdict.score for verdict in one.values()][:2] == alone
    assert sorted(result.index for result in told) == [0, 1, 2, 3]
    assert {result.value.score for result in told} == {verdict.score for verdict in one.values()}
    assert one.stats.ok == 4
    assert all(result.endpoint == "a" and len(result.attempts) == 1 for result in one)


def test_a_batch_whose_results_are_not_kept_tells_them_all_the_same() -> None:
    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        told: list[Any] = []
        batch = await scorer.batch_score([PAIR] * 5, on_result=told.append, keep_results=False)
        return len(batch), len(told), batch.stats.ok

    assert used(use) == (0, 5, 5)


def test_a_field_that_no_reward_model_knows_is_refused_in_a_single_call_and_carried_through_a_batch() -> None:
    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        with pytest.raises(ConfigError, match="'rubric'"):
            await scorer.score(*PAIR, rubric="be kind")
        told: list[Any] = []
        items = [PAIR, {"prompt": "q", "response": "r", "id": 7}, ("q",), {"prompt": "q", "id": 8}, {**asked, "refrence": "x"}, PAIR]
        batch = await scorer.batch_score(items, on_result=told.append)
        await scorer.batch_score(items, on_result=told.append, keep_results=False)
        return batch, told

    asked = {"prompt": "q", "response": "r"}
    batch, told = used(use)
    assert [type(result.error).__name__ for result in batch] == ["NoneType", "NoneType", *["ConfigError"] * 3, "NoneType"]
    wanted = [{}, {"id": 7}, {}, {"id": 8}, {"refrence": "x"}, {}]
    assert [result.extra for result in batch] == wanted
    assert [[result.extra for result in told if result.index == index] for index in range(6)] == [[extra, extra] for extra in wanted]
    assert "did you mean 'reference'?" in str(batch[4].error)


def test_a_failure_is_an_error_with_its_trail_and_never_a_number() -> None:
    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        with pytest.raises(QRewardError):
            await scorer.score(*PAIR, timeout=1)
        batch = await scorer.batch_score([PAIR], timeout=1)
        with pytest.raises(RequestTimeout):
            await scorer.score(*PAIR, timeout=0.0001)
        return batch

    batch = used(use, FakeEndpoint("a", kind="openrlhf", faults=Faults(error_500=1.0)))
    assert not batch[0].ok
    assert batch[0].attempts
    assert batch.values() == [None]


def test_an_input_that_raises_interrupts_the_batch() -> None:
    def faulty() -> Any:
        yield PAIR
        raise LookupError("no such row")

    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        with pytest.raises(BatchInterrupted) as caught:
            await scorer.batch_score(faulty())
        return caught.value

    error = used(use)
    assert isinstance(error.__cause__, LookupError)
