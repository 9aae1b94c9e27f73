"""A judge says which of two responses is better. It sees each pair in both orders, so that position bias becomes a tie.

Run it: ``python examples/judge_compare.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from connect import MODEL, connect

from qreward.judge import Judge
from qreward.testing import FakeEndpoint, Latency


def shorter(messages: list[Any]) -> str:
    """A fake judge that prefers the shorter answer, and the first one if they are equally long."""
    first, second = messages[-1]["content"].split("Answer A:\n```\n")[1].split("\n```\n\nAnswer B:\n```\n")
    return '{"reason": "brevity", "preferred": "B"}' if len(second.split("\n```")[0]) < len(first) else '{"preferred": "A"}'


FLEET = (FakeEndpoint("judge", models=["judge-*"], responder=shorter, latency=Latency(base=0.02)),)
PAIRS = [
    ("Name a prime.", "7", "One of the primes is 7."),
    ("Name a prime.", "It is 11, I think.", "11"),
    ("Name a prime.", "13", "17"),
]


async def main() -> None:
    async with connect(*FLEET) as client:
        judge = Judge(client, model=MODEL, temperature=0)
        batch = await judge.batch_compare(PAIRS, timeout=60)
    for (_, first, second), comparison in zip(PAIRS, batch.values(), strict=True):
        votes = ", ".join(f"{vote.score:g} as {'second' if vote.swapped else 'first'}" for vote in comparison.votes)
        print(f"{first!r} or {second!r}: {comparison.preference} (scores of {first!r}: {votes})")


if __name__ == "__main__":
    asyncio.run(main())
