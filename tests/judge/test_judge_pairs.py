"""Comparing two responses: both orders, and what comes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from judge_tools import JudgeBackend, Sent, always, judge_over, judging, prefers, refused

from qreward.errors import ConfigError, InvalidResponse
from qreward.judge import Comparison, Judge

PAIR = ("Name a prime.", "7", "8")


def likes(text: str) -> Any:
    """A judge that prefers the answer that is this text, wherever it stands."""

    async def script(sent: Sent) -> str:
        await asyncio.sleep(1)
        first = sent.text.split("Answer A:\n", 1)[1].split("Answer B:")[0]
        return prefers("A" if text in first else "B")

    return script


def compared(backend: JudgeBackend, *pair: Any, **settings: Any) -> Comparison:
    return judging(backend, lambda judge: judge.compare(*(pair or PAIR)), **settings)


def test_both_orders_are_asked_at_once_and_only_what_is_better_in_both_is_preferred() -> None:
    backend = JudgeBackend(likes("7"))
    comparison = compared(backend)
    assert (comparison.preference, comparison.score) == ("first", 1.0)
    assert [(vote.swapped, vote.score) for vote in comparison.votes] == [(False, 1.0), (True, 1.0)]
    assert [sent.at for sent in backend.sent] == [0, 0]
    assert comparison.usage is not None
    assert comparison.usage.total_tokens == 30
    assert compared(JudgeBackend(likes("8"))).preference == "second"
    tie = compared(JudgeBackend(always(prefers("A"))))  # it likes a place
    assert (tie.preference, tie.score, sorted(vote.score for vote in tie.votes)) == ("tie", 0.5, [0.0, 1.0])


def test_both_orders_count_whichever_arrives_first() -> None:
    for said, outcome in (("tie", "tie"), ("A", "tie"), (None, "InvalidResponse")):
        for slow in (True, False):

            async def script(sent: Sent, slow: bool = slow, said: str | None = said) -> str:
                swapped = sent.text.index("8\n") < sent.text.index("7\n")
                await asyncio.sleep(9 if swapped == slow else 1)
                return prefers("tie") if not swapped else prefers(said) if said else "no idea"

            async def use(judge: Judge) -> tuple[str, int]:
                try:
                    found = await judge.compare(*PAIR)
                except InvalidResponse as error:
                    return type(error).__name__, 0
                return found.preference, len(found.votes)

            assert judging(JudgeBackend(script), use, reasks=0) == (outcome, 2 if said else 0), (said, slow)


async def test_a_batch_of_pairs_comes_back_in_order_with_failures_as_values() -> None:
    async def script(sent: Sent) -> Any:
        return refused("no") if "broken" in sent.text else await likes("good")(sent)

    pairs: list[tuple[Any, str]] = [
        (("q", "good", "bad"), "first"),
        ({"prompt": "q", "first": "bad", "second": "good"}, "second"),
        (("q", "broken", "bad"), "BadRequest"),
        (("q", "good"), "ConfigError"),
        (("q", "good", "x", "ref"), "first"),
    ]
    async with judge_over(JudgeBackend(script)) as judge:
        batch = await judge.batch_compare([pair for pair, _ in pairs])
        with pytest.raises(ConfigError, match="referense"):
            await judge.compare(*PAIR, referense="7")
    assert [result.value.preference if result.ok else type(result.error).__name__ for result in batch] == [wanted for _, wanted in pairs]


def test_the_users_template_of_pairs_is_kept_and_checked() -> None:
    backend = JudgeBackend(always(prefers("tie")))
    compared(backend, pair_prompt="{prompt} A={first} B={second}")
    assert [sent.text.partition("\n")[0] for sent in backend.sent] == ["Name a prime. A=7 B=8", "Name a prime. A=8 B=7"]
    with pytest.raises(ConfigError, match="second"):
        compared(backend, pair_prompt="{first} only")
