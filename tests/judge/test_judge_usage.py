"""Tokens of a judgement that failed: they were paid, and its error says how many there were."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

from judge_tools import JudgeWire, Sent, always, broken, in_turn, judge_over, judging

from qreward.errors import InvalidResponse, QRewardError, RequestTimeout
from qreward.judge import Judge

ASKED = ("What is 6 x 7?", "42")


def tokens(thing: Any) -> int | None:
    return None if thing.usage is None else thing.usage.total_tokens


async def error_of(judge: Judge, **how: Any) -> QRewardError:
    try:
        await judge.score(*ASKED, **how)
    except QRewardError as error:
        return error
    raise AssertionError("a verdict")


async def slow_again(sent: Sent) -> Any:
    """No verdict after a second, and nothing at all when asked again."""
    await asyncio.sleep(1 if len(sent.messages) == 1 else 3600)
    return "no verdict"


def test_the_error_of_a_judgement_has_the_tokens_of_all_answers_that_came() -> None:
    """Each answer has 15 tokens."""
    unreadable, nothing = always("no verdict"), always(broken(400))
    cases: dict[str, tuple[Any, dict[str, Any], dict[str, Any], type[QRewardError], int | None]] = {
        "asked again": (unreadable, {}, {}, InvalidResponse, 30),
        "asked once": (unreadable, {"reasks": 0}, {}, InvalidResponse, 15),
        "then nothing came": (slow_again, {}, {"timeout": 5}, RequestTimeout, 15),
        "three samples": (unreadable, {"samples": 3, "reasks": 0}, {}, InvalidResponse, 30),  # the third is not waited for
        "one of two models": (unreadable, {"model": ("a", "b"), "reasks": 0}, {}, InvalidResponse, 15),
        "no answer at all": (nothing, {}, {"timeout": 5}, QRewardError, None),
    }
    found = {}
    for name, (script, settings, how, kind, _) in cases.items():

        async def use(judge: Judge, how: Any = how, kind: Any = kind) -> list[int | None]:
            error = await error_of(judge, **how)
            assert isinstance(error, kind)
            (result,) = await judge.batch_score([ASKED], **how)
            return [tokens(error), tokens(pickle.loads(pickle.dumps(error))), tokens(result.error), tokens(result)]

        found[name] = judging(JudgeWire(script), use, **settings)
    assert found == {name: [case[-1]] * 4 for name, case in cases.items()}


async def test_tokens_that_several_share_are_paid_by_one_of_them() -> None:
    wire = JudgeWire(in_turn("no verdict"))
    async with judge_over(wire) as judge:
        assert [tokens(error) for error in await asyncio.gather(*(error_of(judge) for _ in range(5)))] == [30, None, None, None, None]
    assert len(wire.sent) == 2
