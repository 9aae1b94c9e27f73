"""A ranking of the responses to each prompt, from comparisons of pairs in both orders.

Run it: ``python examples/judge_rank.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from connect import MODEL, connect

from qreward.judge import Judge
from qreward.testing import FakeEndpoint, Latency


def larger(messages: list[Any]) -> str:
    """A fake judge that prefers the larger number."""
    first, second = messages[-1]["content"].split("Answer A:\n```\n")[1].split("\n```\n\nAnswer B:\n```\n")
    return '{"preferred": "A"}' if int(first) > int(second.split("\n```")[0]) else '{"preferred": "B"}'


FLEET = (FakeEndpoint("judge", models=["judge-*"], responder=larger, latency=Latency(base=0.01)),)
GROUPS = [
    ("Name a large number.", ["7", "13", "7", "99"]),
    ("Name a larger one.", ["101", "5", "23", "42", "77", "64", "8", "12", "1000", "31"]),
]


async def main() -> None:
    async with connect(*FLEET) as client:
        judge = Judge(client, model=MODEL, temperature=0)
        batch = await judge.batch_rank(GROUPS, timeout=60)
    for (prompt, responses), ranking in zip(GROUPS, batch.values(), strict=True):
        best = ranking.order[0]
        print(f"{prompt} {len(ranking.comparisons)} pairs; best: {responses[best]}, ahead of the average in", end=" ")
        print(f"{ranking.scores[best]:.0%} of comparisons; advantages: {[round(number, 1) for number in ranking.advantages]}")


if __name__ == "__main__":
    asyncio.run(main())
