"""An LLM judge scores responses with a verdict class of your own and the votes of two models. Equal items are judged once.

Run it: ``python examples/judge_score.py``.
"""

from __future__ import annotations

import asyncio
import os
from typing import Literal

from connect import connect
from pydantic import BaseModel

from qreward.judge import Judge
from qreward.testing import FakeEndpoint, Latency

MODELS = os.environ.get("JUDGE_MODEL", "judge-7b,judge-70b").split(",")
FLEET = (
    FakeEndpoint("small", models=["judge-7b"], responder="judge", latency=Latency(base=0.02), max_concurrency=8),
    FakeEndpoint("large", models=["judge-70b"], responder="judge", latency=Latency(base=0.05), max_concurrency=4),
)


class Correctness(BaseModel):
    """The form of a judge's answer; ``score`` is the reward."""

    reason: str = ""
    verdict: Literal["correct", "incorrect"]
    score: int


async def main() -> None:
    rollouts = [(f"What is {n} times 7?", str(n * 7 + guess % 2), str(n * 7)) for n in range(8) for guess in range(5)]
    async with connect(*FLEET) as client:
        judge = Judge(client, model=MODELS, verdict=Correctness, scale=(0, 1), settle="mean", temperature=0)
        batch = await judge.batch_score(rollouts, timeout=60)
        verdict = await judge.score("Name a prime above 10.", "eleven", reference="11")
    rewards = [score for score in batch.scores(default=None) if score is not None]
    asked = sum(stats.sent for stats in batch.stats.endpoints.values())
    print(f"{batch.stats.ok} of {batch.stats.items} judged by {len(MODELS)} models in {asked} requests")
    print(f"mean reward {sum(rewards) / len(rewards):.2f}")
    print(f"one item: {verdict.score} because of {verdict.verdict.reason!r}, by {', '.join(vote.model for vote in verdict.votes)}")


if __name__ == "__main__":
    asyncio.run(main())
