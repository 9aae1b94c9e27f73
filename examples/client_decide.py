"""Typed questions about a text, with a probability for every answer: one text, then many, at servers with two different APIs.

Run it: ``python examples/client_decide.py``.
"""

from __future__ import annotations

import asyncio

from connect import MODEL, connect

from qreward import Choice, QRewardClient, Score, YesNo
from qreward.testing import FakeEndpoint, Latency

FLEET = (
    FakeEndpoint(name="judge-0", models=["judge-*"], decisions=True, latency=Latency(base=0.02)),
    FakeEndpoint(name="judge-1", models=["judge-*"], decisions=True, latency=Latency(base=0.02)),
)
QUESTIONS = [
    YesNo("The answer is right.", name="right"),
    Score("How clear is the answer?", levels=["unclear", "readable", "clear"], name="clear"),
    Choice("What is the tone?", choices={"calm": "factual and polite", "rude": ""}, name="tone"),
]
# the fake servers read the probability of a right answer in the text
ANSWERS = [f"What is {n} times 7? It is {n * 7 + n % 2}. truth={0.1 if n % 2 else 0.9}" for n in range(8)]


async def one(client: QRewardClient) -> None:
    decision = await client.decide(ANSWERS[0], QUESTIONS, model=MODEL)
    right, clear, tone = decision
    print(f"right with probability {right.probability:.2f}")
    print(f"clarity {clear.score:.2f} of 2, confidence {clear.confidence:.2f}")
    print(f"tone {tone.choice}: {tone.probabilities[tone.choice]:.2f}")


async def many(client: QRewardClient) -> None:
    batch = await client.batch_decide(ANSWERS, QUESTIONS, model=MODEL, timeout=30)
    rewards = [result.value["right"].probability if result.ok else None for result in batch]
    print("rewards:", " ".join("none" if reward is None else f"{reward:.2f}" for reward in rewards))
    print(f"{batch.stats.ok} of {batch.stats.items} decided")


async def main() -> None:
    async with connect(*FLEET) as client:
        await one(client)
        await many(client)


if __name__ == "__main__":
    asyncio.run(main())
