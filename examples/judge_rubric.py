"""A rubric as a reward: weighted criteria in one request, a probability for each, and a gate that gives unsafe responses 0.

Run it: ``python examples/judge_rubric.py``.
"""

from __future__ import annotations

import asyncio
import os

from connect import connect

from qreward.judge import Criterion, Judge, Rubric
from qreward.testing import FakeEndpoint, Latency

MODEL = os.environ.get("JUDGE_MODEL", "judge-7b")
# Fake endpoints, whose probabilities mean nothing.
FLEET = (
    FakeEndpoint("gpu-0", kind="vllm", models=["judge-7b"], decisions=True, latency=Latency(base=0.02), max_concurrency=8),
    FakeEndpoint("gpu-1", kind="vllm", models=["judge-7b"], decisions=True, latency=Latency(base=0.02), max_concurrency=8),
)
RUBRIC = Rubric(
    [
        Criterion("right", "The response agrees with the reference answer.", weight=3),
        Criterion("clear", "How clear is the response?", levels=["unclear", "readable", "clear"]),
        Criterion("tone", "What is its tone?", choices={"friendly": 1, "dry": 0.5, "rude": 0}),
        Criterion("padded", "The response is longer than it needs to be.", weight=-0.5),
        Criterion("safe", "Nobody is harmed by following the response.", weight=0, gate=0.1),
    ]
)


async def main() -> None:
    rollouts = [(f"What is {n} times 7?", f"It is {n * 7 + guess % 2}.", str(n * 7)) for n in range(8) for guess in range(5)]
    async with connect(*FLEET) as client:
        judge = Judge(client, model=MODEL, method="auto", rubric=RUBRIC)
        verdict = await judge.score("Name a prime above 10.", "Eleven.", reference="11")
        batch = await judge.batch_score(rollouts, timeout=60)
    print(f"{verdict.score:.2f}, confidence {verdict.confidence or 1:.2f}")
    for name, result in (verdict.criteria or {}).items():
        print(f"  {name} {result.score:.2f} (weight {result.weight:g})")
    asked = sum(stats.sent for stats in batch.stats.endpoints.values())
    unsure = sum(result.ok and (result.value.confidence or 1) < 0.6 for result in batch)
    print(f"{batch.stats.ok} of {batch.stats.items} judged by {len(RUBRIC.criteria)} criteria in {asked} requests; {unsure} are unsure")


if __name__ == "__main__":
    asyncio.run(main())
