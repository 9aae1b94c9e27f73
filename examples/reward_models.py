"""Scores of GPU reward models on servers of two kinds: one response, a batch in merged requests, a ranking and labels.

Run it: ``python examples/reward_models.py``.
"""

from __future__ import annotations

import asyncio

from qreward import Endpoint, QRewardClient, RewardModel
from qreward.testing import REFUSED, FakeEndpoint, FakeFleet, Faults, Latency, Scoring

MODEL = "rm-7b"
WORK = {"latency": Latency(base=0.02), "scoring": Scoring(per_item=0.0015)}
# One item in fifty is refused, and gpu-0 sometimes fails. Scores are made from a hash of the text.
FAKES = (
    FakeEndpoint("gpu-0", models=["rm-*"], kind="vllm", max_concurrency=4, faults=Faults(error_500=0.05), **WORK),
    FakeEndpoint("gpu-1", models=["rm-*"], kind="tei", **WORK),
)


def as_reward_model(endpoint: Endpoint) -> Endpoint:
    """Both servers take one text, so a template joins prompt and response."""
    return endpoint.model_copy(update={"reward": RewardModel(template="<user>{prompt}<assistant>{response}")})


async def main() -> None:
    async with FakeFleet(FAKES) as fleet, QRewardClient(map(as_reward_model, fleet.endpoints)) as client:
        one = await client.score("What is 2 + 2?", "4", model=MODEL)
        print(f"one score: {one:.3f}")

        prompts = [f"What is {number} times 7?" for number in range(2000)]
        rollouts = [(prompt, REFUSED if number % 50 == 49 else str(number)) for number, prompt in enumerate(prompts)]
        batch = await client.batch_score(rollouts, model=MODEL)
        print(f"the batch: {batch.stats.ok} scored, {batch.stats.failed} refused, in {batch.stats.seconds:.2f} s")
        print(f"rewards: {[None if reward is None else round(reward, 2) for reward in batch.values()[47:52]]}")
        for name, stats in client.stats().items():
            print(f"{name}: {batch.stats.endpoints[name].answered} items in {stats.answered} answers")

        first, second = await asyncio.gather(client.rerank("primes", ["4", "5"], MODEL), client.classify("2 + 2?", "4", model=MODEL))
        print(f"a ranking: {[round(score, 3) for score in first]}, labels: {', '.join(second)}")


if __name__ == "__main__":
    asyncio.run(main())
