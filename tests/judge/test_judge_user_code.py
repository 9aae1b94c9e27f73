"""Whatever the user's score function raises, the item ends with an error that names the function, and the others are judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from judge_tools import JudgeWire, always, judging, score

from qreward import InvalidResponse
from qreward.judge import Judge


class Stop(BaseException):
    """Not an ``Exception``, as some libraries' signals are not."""


def raising_second(error: BaseException) -> Callable[[Any], float]:
    """A score function that raises when it is called for the second time."""
    calls = 0

    def worth(_verdict: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return 0.5

    return worth


def test_an_item_ends_whatever_the_score_function_raises() -> None:
    async def batch(judge: Judge) -> list[Any]:
        found = await asyncio.wait_for(judge.batch_score([("q", f"r {number}") for number in range(6)]), 60)
        return [result.error for result in found if not result.ok]

    async def calls(judge: Judge) -> list[Any]:
        asked = (asyncio.wait_for(judge.score("q", f"r {number}"), 60) for number in range(6))
        return [found for found in await asyncio.gather(*asked, return_exceptions=True) if isinstance(found, BaseException)]

    wrong = []
    for error in (ValueError("v"), asyncio.CancelledError("c"), GeneratorExit("g"), Stop("s")):
        for use in (batch, calls):
            (found,) = judging(JudgeWire(always(score(5))), use, score=raising_second(error))
            if not (isinstance(found, InvalidResponse) and f"raised {type(error).__name__}" in str(found) and found.__cause__ is error):
                wrong.append((error, use.__name__, found))
    assert wrong == []
