"""Answers that are not whole are never read into a verdict, whatever stands in them: they are asked for again, or are an error."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from judge_tools import JudgeWire, always, in_turn, judge_over, judging, prefers, score

from qreward.errors import InvalidResponse
from qreward.judge import Judge

ASKED = ("What is 6 x 7?", "42")
GIVEN_UP = ("abort", "error")
"""What the server gave up is sent again as it was."""
NOT_WHOLE = ("length", "content_filter", "odd", *GIVEN_UP)
TEXTS = ("It is right.\nScore: 1", score(1), "Score: 1")


def ended(text: str, reason: str | None) -> dict[str, Any]:
    return {"content": text, "finish_reason": reason}


def test_no_answer_that_is_not_whole_becomes_a_score() -> None:
    async def fails(judge: Judge) -> str:
        with pytest.raises(InvalidResponse, match="not whole") as caught:
            await judge.score(*ASKED)
        return str(caught.value)

    wrong = []
    for reason, text, reasks in product(NOT_WHOLE, TEXTS, (0, 1)):
        wire = JudgeWire(always(ended(text, reason), seconds=0.01))
        message = judging(wire, fails, reasks=reasks)
        if f"finish_reason {reason!r}" not in message or (reason not in GIVEN_UP and len(wire.sent) != reasks + 1):
            wrong.append((reason, text, reasks, len(wire.sent), message))
    assert wrong == []


def test_whole_answers_are_read() -> None:
    found = {
        (reason, text): judging(JudgeWire(always(ended(text, reason))), lambda judge: judge.score(*ASKED)).score
        for reason in ("stop", "tool_calls", "function_call", None, "null")
        for text in TEXTS
    }
    assert [key for key, value in found.items() if value != 0.1] == []


def test_an_answer_that_is_not_whole_is_asked_for_again_and_nothing_of_it_is_sent_back() -> None:
    for reason in NOT_WHOLE:
        wire = JudgeWire(in_turn(ended("Score: 1", reason), score(7)))
        verdict = judging(wire, lambda judge: judge.score(*ASKED))
        assert (verdict.score, len(wire.sent)) == (0.7, 2), reason
        assert [message["role"] for message in wire.sent[1].messages] == ["user"], reason


def test_an_answer_that_the_server_gave_up_is_asked_for_again_unchanged_and_takes_no_reask() -> None:
    wire = JudgeWire(in_turn(ended("Score: 1", "abort"), score(7)))
    verdict = judging(wire, lambda judge: judge.score(*ASKED), reasks=0)
    assert verdict.score == 0.7
    assert wire.sent[0].messages == wire.sent[1].messages


async def test_in_a_batch_and_in_pairs_it_is_an_error_of_its_item() -> None:
    async def script(sent: Any) -> Any:
        return ended(prefers("A") if "Answer B" in sent.question else score(1), "content_filter" if "bad" in sent.question else "stop")

    async with judge_over(JudgeWire(script)) as judge:
        scores = await judge.batch_score([("q", "good"), ("q", "bad")])
        pairs = await judge.batch_compare([("q", "a", "b"), ("q", "bad", "b")])
    assert [result.ok for result in scores] == [result.ok for result in pairs] == [True, False]
    assert {type(error) for error in [*scores.errors.values(), *pairs.errors.values()]} == {InvalidResponse}


def test_a_vote_that_is_not_whole_leaves_it_to_the_others() -> None:
    async def script(sent: Any) -> Any:
        return ended(score(1), "length") if sent.params["seed"] == 1 else score(8)

    verdict = judging(JudgeWire(script), lambda judge: judge.score(*ASKED), samples=3, seed=1, settle="mean")
    assert (verdict.score, len(verdict.votes)) == (0.8, 2)
