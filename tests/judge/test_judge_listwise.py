"""Ranking by lists: what is shown, which orders are votes, and how two orders become scores."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from judge_tools import JudgeBackend, Sent, judge_over, refused

from qreward.errors import BadRequest, ConfigError, InvalidResponse

PROMPT = "Name a large number."


def shown(sent: Sent) -> dict[str, int]:
    """Label -> the number that was shown."""
    return {label: int(number) for label, number in re.findall(r"Answer ([A-Z]):\n```\n(\d+)\n```", sent.question)}


def ordered(order: Any) -> str:
    return json.dumps({"reason": "size", "order": order})


async def larger(sent: Sent) -> Any:
    """A judge that puts larger numbers first."""
    numbers = shown(sent)
    return ordered(sorted(numbers, key=lambda label: -numbers[label]))


async def test_one_request_ranks_all_and_another_shows_them_in_the_opposite_order() -> None:
    backend = JudgeBackend(larger)
    async with judge_over(backend) as judge:
        ranking = await judge.rank(PROMPT, ["5", "9", "1", "5", "7"], method="listwise", reference="10")
    assert [list(shown(sent).values()) for sent in backend.sent] == [[5, 9, 1, 7], [7, 1, 9, 5]]
    assert all("Reference answer:\n```\n10" in sent.text for sent in backend.sent)
    assert (ranking.order, ranking.ranks) == ((1, 4, 0, 3, 2), (3, 1, 5, 3, 2))
    assert ranking.scores == pytest.approx((1 / 3, 1.0, 0.0, 1 / 3, 2 / 3))
    assert set(ranking.errors) == {0.0}
    assert [vote.verdict.order for vote in ranking.votes] == [["B", "D", "A", "C"], ["C", "A", "D", "B"]]  # type: ignore[union-attr]
    assert ranking.usage is not None
    assert (ranking.usage.total_tokens, ranking.comparisons, ranking.failed) == (30, {}, 0)


async def test_a_judge_that_likes_places_leaves_all_equal_and_the_errors_show_it() -> None:
    async def places(sent: Sent) -> str:
        return ordered(sorted(shown(sent)))

    async with judge_over(JudgeBackend(places)) as judge:
        ranking = await judge.rank(PROMPT, ["1", "2", "3"], method="listwise")
    assert (ranking.scores, ranking.advantages) == ((0.5,) * 3, (0.0,) * 3)
    assert ranking.errors == pytest.approx((0.5, 0.0, 0.5))


async def test_an_order_that_is_incomplete_or_repeats_is_asked_again_and_then_an_error() -> None:
    faults: list[Any] = []
    for wrong in (["A", "B"], ["A", "B", "B"], ["A", "B", "C", "D"], ["a", "b", "c"], [], "ABC", [1, 2, 3], ["A", "B", None]):

        async def script(_: Sent, wrong: Any = wrong) -> str:
            return ordered(wrong)

        backend = JudgeBackend(script)
        async with judge_over(backend, reasks=1) as judge:
            try:
                await judge.rank(PROMPT, ["1", "2", "3"], method="listwise")
                faults.append((wrong, "was read"))
            except InvalidResponse:
                if len(backend.sent) < 3:
                    faults.append((wrong, len(backend.sent)))
    assert faults == []


async def test_one_failed_order_fails_its_pair_and_more_than_half_of_the_pairs_are_needed() -> None:
    async def script(sent: Sent) -> Any:
        return refused("no", model=sent.model) if sent.model == "odd" and shown(sent)["A"] == 1 else await larger(sent)

    async with judge_over(JudgeBackend(script), model=("a", "odd", "b")) as judge:
        ranking = await judge.rank(PROMPT, ["1", "2", "3"], method="listwise")
    assert (ranking.order, len(ranking.votes), ranking.failed) == ((2, 1, 0), 4, 2)
    async with judge_over(JudgeBackend(script), model=("a", "odd")) as judge:
        with pytest.raises(BadRequest, match="1 of 2 votes failed"):
            await judge.rank(PROMPT, ["1", "2", "3"], method="listwise")


async def test_a_batch_of_lists_comes_back_in_order_and_what_needs_no_request_gets_none() -> None:
    backend = JudgeBackend(larger)
    groups: list[Any] = [
        (PROMPT, ["1", "2"]),
        (PROMPT, ["3", "3"]),
        {"prompt": PROMPT, "responses": ["7", "5", "6"], "id": 7},
        (PROMPT, []),
        (PROMPT, ["1", None]),
        (PROMPT, [str(number) for number in range(27)]),
    ]
    async with judge_over(backend) as judge:
        batch = await judge.batch_rank(groups, method="listwise")
    assert [result.value.order if result.ok else type(result.error) for result in batch] == [
        (1, 0), (0, 1), (0, 2, 1), (), ConfigError, ConfigError,
    ]  # fmt: skip
    assert "a list may have at most 26 different responses, not 27" in str(batch[5].error)
    assert batch[2].extra == {"id": 7}
    assert len(backend.sent) == 4


async def test_what_a_list_cannot_have_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "listwise", "comparisons": 5}, "compares none"),
        ({"method": "lists"}, "must be 'pairs' or 'listwise'"),
        ({"method": "listwise", "refrence": "x"}, "refrence"),
    ]
    backend = JudgeBackend(larger)
    async with judge_over(backend) as judge:
        for options, words in cases:
            with pytest.raises(ConfigError, match=words):
                await judge.rank(PROMPT, ["1", "2"], **options)
    async with judge_over(backend, method="decide", scale=(1, 5)) as judge:
        with pytest.raises(ConfigError, match="needs a judge that writes"):
            await judge.rank(PROMPT, ["1", "2"], method="listwise")
    assert backend.sent == []
