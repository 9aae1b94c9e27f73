"""A reward model with the face of a judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qreward import QRewardClient
from qreward.errors import ConfigError, QRewardError, RequestTimeout
from qreward.judge import RewardModelScorer, Scorer
from qreward.judge.reward_model import _item
from qreward.results import BatchInterrupted
from qreward.testing import FakeEndpoint, FakeFleet, Faults

PAIR = ("What is 6 x 7?", "42")
ASKED = {"prompt": "q", "response": "r"}


def used(use: Any, kind: str = "openrlhf", *, faults: Faults | None = None, **settings: Any) -> Any:
    async def run() -> Any:
        fakes = FakeFleet([FakeEndpoint("a", kind=kind, faults=faults or Faults())])  # type: ignore[arg-type]
        async with fakes as fleet, QRewardClient(fleet.endpoints) as client:
            scorer: Scorer = RewardModelScorer(client, "rm-7b", **settings)
            return await use(scorer, client)

    return asyncio.run(run())


def test_a_score_is_what_the_client_gives_as_a_verdict_with_one_vote_and_a_range_bounds_it() -> None:
    async def use(scorer: Scorer, client: QRewardClient) -> Any:
        return float(await client.score(*PAIR, model="rm-7b")), await scorer.score(*PAIR), (await scorer.batch_score([PAIR]))[0].value

    for limits in (None, (100, 200)):
        raw, *verdicts = used(use, range=limits)
        assert raw < 100
        for verdict in verdicts:
            assert (verdict.score, type(verdict.score)) == (raw if limits is None else 100.0, float)
            assert [(vote.score, vote.model, vote.verdict) for vote in verdict.votes] == [(verdict.score, "rm-7b", None)]
            assert verdict.text == ""
    for wrong in ((0.0, float("nan")), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(ConfigError):
            RewardModelScorer(QRewardClient(["http://a/v1"]), "rm", range=wrong)


def test_the_tokens_and_the_attributes_of_a_score_are_in_its_verdict() -> None:
    conversation = ([{"role": "user", "content": "hi"}], "42")

    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        return await scorer.score(*conversation), (await scorer.batch_score([conversation]))[0].value

    one, other = used(use, "vllm")
    assert one.usage == other.usage
    assert one.usage.total_tokens
    one, other = used(use, "nim")
    assert one.attributes == other.attributes
    assert one.attributes


def test_a_batch_takes_what_a_judge_takes_and_keeps_its_order() -> None:
    items: list[Any] = [PAIR, (*PAIR, "42"), ASKED, {**ASKED, "reference": "y"}]

    async def stream() -> AsyncIterator[Any]:
        for item in items:
            yield item

    async def use(scorer: Scorer, _client: QRewardClient) -> None:
        told: list[Any] = []
        one, other = await scorer.batch_score(items, on_result=told.append), await scorer.batch_score(stream())
        scores = [verdict.score for verdict in one.values() if verdict]
        assert scores == [verdict.score for verdict in other.values() if verdict]
        assert scores[:2] == [(await scorer.score(item[0], item[1])).score for item in items[:2]]
        assert sorted((result.index, result.value.score) for result in told) == list(enumerate(scores))
        assert one.stats.ok == 4
        assert all(result.endpoint == "a" and len(result.attempts) == 1 for result in one)
        batch = await scorer.batch_score(items, on_result=told.append, keep_results=False)
        assert (len(batch), len(told), batch.stats.ok) == (0, 8, 4)

    used(use)


def test_a_field_that_no_reward_model_knows_is_refused_in_a_single_call_and_carried_through_a_batch() -> None:
    items: list[Any] = [PAIR, {**ASKED, "id": 7}, ("q",), {"prompt": "q", "id": 8}, {**ASKED, "refrence": "x"}, PAIR]

    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        with pytest.raises(ConfigError, match="'rubric'"):
            await scorer.score(*PAIR, rubric="be kind")
        return await scorer.batch_score(items)

    batch = used(use)
    assert [type(result.error).__name__ for result in batch] == ["NoneType", "NoneType", *["ConfigError"] * 3, "NoneType"]
    assert [result.extra for result in batch] == [{}, {"id": 7}, {}, {"id": 8}, {"refrence": "x"}, {}]
    assert "did you mean 'reference'?" in str(batch[4].error)


def test_a_failure_is_an_error_with_its_trail_and_never_a_number() -> None:
    def faulty() -> Any:
        yield PAIR
        raise LookupError("no such row")

    async def use(scorer: Scorer, _client: QRewardClient) -> None:
        with pytest.raises(QRewardError):
            await scorer.score(*PAIR, timeout=0.3)
        batch = await scorer.batch_score([PAIR], timeout=0.3)
        assert batch.values() == [None]
        assert batch[0].attempts
        with pytest.raises(RequestTimeout):
            await scorer.score(*PAIR, timeout=0.0001)
        with pytest.raises(BatchInterrupted) as caught:
            await scorer.batch_score(faulty(), timeout=0.3)
        assert isinstance(caught.value.__cause__, LookupError)

    used(use, faults=Faults(error_500=1.0))


def test_what_was_scored_before_a_batch_was_interrupted_are_verdicts() -> None:
    def interrupted() -> Any:
        yield {**ASKED, "id": 7}
        raise LookupError("no such row")

    async def use(scorer: Scorer, _client: QRewardClient) -> Any:
        with pytest.raises(BatchInterrupted) as caught:
            await scorer.batch_score(interrupted())
        return caught.value.results, await scorer.batch_score([{**ASKED, "id": 7}])

    cut, whole = used(use, range=(100, 200))
    assert [(result.value, result.extra) for result in cut] == [(result.value, result.extra) for result in whole]
    assert (cut.scores(), cut.stats.ok) == ([100.0], 1)


def test_a_blank_reference_is_no_label() -> None:
    for absent in ("", " ", None, float("nan")):
        assert _item({**ASKED, "reference": absent}) == ASKED
