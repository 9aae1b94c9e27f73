"""Several judges and samples: how they settle, and what a vote that fails does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_tools import QUESTION, JudgeBackend, Sent, always, broken, judge_over, judging, now, score

from qreward.errors import DeadlineExceeded, QRewardError, RequestError, ServerError
from qreward.judge import Judge, Verdict, Vote
from qreward.judge.aggregation import aggregate_comparisons, aggregate_scores, confidence_of, quorum
from qreward.judge.config import Settle


def voting(*answers: tuple[float, Any]) -> Callable[[Sent], Any]:
    """Each request, in their order, answers after so many seconds."""
    order = iter(answers)

    async def script(_sent: Sent) -> Any:
        seconds, said = next(order)
        await asyncio.sleep(seconds)
        return score(said) if isinstance(said, int | float) else said

    return script


def timed(backend: JudgeBackend, *, timeout: float | None = None, **settings: Any) -> tuple[Verdict, float]:
    async def use(judge: Judge) -> tuple[Verdict, float]:
        return await judge.score(*QUESTION, timeout=timeout), now()

    outcome: tuple[Verdict, float] = judging(backend, use, **settings)
    return outcome


def test_all_votes_are_asked_at_once_and_count_in_whatever_order_they_arrive() -> None:
    cases: list[tuple[list[int], dict[str, Any], float, float]] = [
        ([8, 8, 2], {}, 0.8, 2 / 3),
        ([1, 0, 1, 1, 0], {"scale": (0, 1)}, 1.0, 3 / 5),
        ([9, 2, 5], {}, 0.5, 1 / 3),  # given equally often: the lower one in the middle, which a judge gave
        ([9, 2], {}, 0.2, 1 / 2),
        ([2, 4, 9], {"settle": "mean"}, 0.5, 1.0),
        ([2, 4, 9], {"settle": "median"}, 0.4, 2 / 3),
    ]
    wrong = []
    for scores, settings, score_, confidence in cases:
        for delays in permutations(range(1, len(scores) + 1)):
            backend = JudgeBackend(voting(*zip(delays, scores, strict=True)))
            verdict, when = timed(backend, samples=len(scores), **settings)
            found = round(verdict.score, 9), verdict.confidence, len(verdict.votes), round(when), {sent.at for sent in backend.sent}
            if found != (score_, pytest.approx(confidence), len(scores), len(scores), {0}):
                wrong.append((scores, delays, settings, found))
    assert wrong == []


def test_several_models_are_several_judges_each_asked_as_often_as_samples_say() -> None:
    """Samples differ by their seed if there is one."""
    backend = JudgeBackend(always(score(6)))
    verdict, _ = timed(backend, model=("small", "large"), samples=2, settle="mean", seed=7)
    assert sorted((sent.model, sent.params["seed"]) for sent in backend.sent) == [("large", 7), ("large", 8), ("small", 7), ("small", 8)]
    assert {vote.model for vote in verdict.votes} == {"small", "large"}
    assert verdict.usage is not None
    assert verdict.usage.total_tokens == 60


def test_a_vote_that_fails_leaves_it_to_the_others_if_more_than_half_answer() -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return broken() if sent.model == "b" else score(4)

    for how in ("majority", "mean", "median"):
        verdict, _ = timed(JudgeBackend(script), model=("a", "b", "c"), settle=how)
        assert verdict.score == 0.4
        assert len(verdict.votes) == 2


async def test_without_more_than_half_the_item_fails_at_once_with_what_each_said() -> None:
    async def script(sent: Sent) -> Any:
        if sent.model == "c":
            await asyncio.sleep(500)
        return "?" if sent.model == "b" else broken()

    backend = JudgeBackend(script)
    async with judge_over(backend, model=("a", "b", "c"), reasks=0) as judge:
        with pytest.raises(RequestError) as caught:
            await judge.score(*QUESTION, timeout=None)
        error, when = caught.value, now()
    assert [part for part in ("2 of 3 votes failed", "ServerError", "InvalidResponse") if part not in str(error)] == []
    assert when < 100
    assert len(backend.cancelled) == 1


async def test_in_a_batch_a_vote_that_cannot_save_its_item_is_cancelled() -> None:
    backend = JudgeBackend(voting(*[(1, "?"), (1, "?"), (300, 5)] * 20))
    async with judge_over(backend, samples=3, reasks=0) as judge:
        batch = await judge.batch_score([(f"q{number}", "a") for number in range(20)])
        assert round(now()) == 1
    counts = batch.stats.endpoints["a"]
    assert (batch.stats.failed, len(backend.cancelled), counts.cancelled, counts.won) == (20, 20, 20, 40)


@pytest.mark.parametrize("limit", ["deadline", "timeout"])
async def test_when_the_time_is_over_the_votes_that_are_there_decide_if_they_suffice(limit: str) -> None:
    items = [(f"q{number}", "a") for number in range(2)]
    backend = JudgeBackend(voting((1, 6), (1, 6), (900, 2), (1, 6), (900, 6), (900, 6)))
    async with judge_over(backend, samples=3) as judge:
        options: dict[str, Any] = {limit: 10.0}
        batch = await judge.batch_score(items, **options)
    assert batch[0].value is not None
    assert batch[0].value.score == 0.6
    assert isinstance(batch[1].error, {"deadline": DeadlineExceeded, "timeout": RequestError}[limit])


async def test_each_of_equal_calls_gets_the_score_of_the_votes_that_are_there_when_its_time_is_over() -> None:
    async def ended(judge: Judge, timeout: float) -> tuple[Verdict, float]:
        return await judge.score(*QUESTION, timeout=timeout), now()

    backend = JudgeBackend(voting((1, 6), (1, 6), (900, 2), (900, 2)))  # the third is asked again when its first time is over
    async with judge_over(backend, samples=3) as judge:
        verdicts, times = zip(*await asyncio.gather(*(ended(judge, timeout) for timeout in (10, 10, 20))), strict=True)
        assert judge.spent.tokens == 30
    assert [verdict.score for verdict in verdicts] == [0.6] * 3
    assert times == (10, 10, 20)
    assert [verdict.usage and verdict.usage.tokens for verdict in verdicts] == [None, None, 30]
    assert [verdict.cached for verdict in verdicts] == [True, True, False]


SETTLES: tuple[Settle, ...] = ("majority", "mean", "median")
VOTES = st.lists(st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]).map(Vote), st.just(ServerError("no"))), min_size=1, max_size=7)


def test_before_all_votes_are_there_only_an_error_that_they_cannot_prevent_is_settled() -> None:
    each_of: list[Any] = [Vote(0.0), Vote(1.0), ServerError("no")]
    for votes in product(each_of, repeat=3):
        for there, how in product(product((True, False), repeat=3), SETTLES):
            known = [vote if each else None for vote, each in zip(votes, there, strict=True)]
            found, final = aggregate_scores(known, how), aggregate_scores(votes, how)
            assert isinstance(found, QRewardError) <= isinstance(final, QRewardError)
            assert found is not None if all(there) else found is None or isinstance(found, QRewardError)


@given(VOTES)
def test_an_item_is_judged_exactly_if_more_than_half_of_its_votes_are_there(votes: list[Any]) -> None:
    there = sum(isinstance(vote, Vote) for vote in votes)
    assert isinstance(aggregate_scores(votes, "majority"), QRewardError) == (there < quorum(len(votes)))


def test_two_orders_that_disagree_are_a_tie_and_a_majority_of_pairs_counts() -> None:
    for one, other in product((0.0, 0.5, 1.0), repeat=2):
        assert compared([one, other]) == (one if one == other else 0.5)
        assert compared([one, None]) is compared([None, one]) is None
    first, second = [1.0] * 2, [0.0] * 2
    assert compared([*first, *second]) == 0.5
    assert compared([*first, *second, *first]) == 1.0
    assert compared([*first, *second, *first], "mean") == pytest.approx(2 / 3)


def compared(scores: list[float | None], how: Any = "majority") -> float | None:
    """The aggregated score of these requests, None where there is none yet."""
    decided: Any = aggregate_comparisons([None if score is None else Vote(score) for score in scores], how)
    return None if decided is None else decided[0]


def test_the_confidence_of_several_votes_is_the_share_that_agrees_with_the_score() -> None:
    written, sure = [Vote(1.0), Vote(1.0), Vote(0.0)], [Vote(0.9, confidence=0.9), Vote(0.6, confidence=0.6)]
    cases: list[tuple[float, list[Vote], Any, float | None, float | None]] = [
        (1.0, [Vote(1.0)], "majority", 1.0, None),  # one that was written
        (0.9, sure[:1], "majority", 1.0, 0.9),
        (1.0, written, "majority", 1.0, 2 / 3),
        (0.9, [Vote(0.9), Vote(0.8)], "majority", 1.0, 0.5),
        (2 / 3, written, "mean", 1.0, 2 / 3),
        (0.5, written[1:], "mean", 1.0, 0.0),
        (0.75, sure, "mean", 1.0, 0.75),
        (0.6, sure, "majority", 1.0, 0.75),
        (20.0, [Vote(30.0), Vote(10.0)], "mean", None, 0.0),
        (20.0, [Vote(20.0), Vote(20.0)], "mean", None, 1.0),
        (3.0, [Vote(4.0), Vote(2.0)], "mean", 4.0, 1.0),
    ]
    found = [confidence_of(score, votes, how, width) for score, votes, how, width, _ in cases]
    assert found == [None if wanted is None else pytest.approx(wanted) for *_, wanted in cases]


def test_votes_agree_alike_whichever_end_of_the_range_is_the_reward_of_the_highest_score() -> None:
    for limits in ((0, 1), (1, 0)):
        for settle in ("majority", "mean"):
            backend = JudgeBackend(voting((1, 8), (2, 8), (3, 8)))
            verdict, _ = timed(backend, samples=3, settle=settle, range=limits)
            assert (round(verdict.score, 9), verdict.confidence) == (0.8 if limits == (0, 1) else 0.2, 1.0), (limits, settle)
    votes = (Vote(0.8), Vote(0.75), Vote(0.1))
    assert confidence_of(0.55, votes, "mean", -1.0) == confidence_of(0.55, votes, "mean", 1.0)
