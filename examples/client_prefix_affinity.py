"""Answers to a few long questions are judged without prefix affinity, and with it, at servers with a prefix cache.

Run it: ``python examples/client_prefix_affinity.py``.
"""

from __future__ import annotations

import asyncio
import random

from connect import MODEL, conversation

from qreward import Limits, QRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Latency, PrefixCache

QUESTIONS = [f"Task {number}. {f'Fact {number} of this task is of no use. ' * 60} What is {number} plus {number}?" for number in range(16)]
ROLLOUTS = [conversation(question, str(2 * n), str(guess)) for guess in range(12) for n, question in enumerate(QUESTIONS)]
random.Random(0).shuffle(ROLLOUTS)  # noqa: S311 - the order of training data


async def judge(label: str, **settings: None) -> None:
    """Judge all rollouts over four endpoints and print the time and the work of the servers."""
    cache = PrefixCache(prefill=0.000075)  # seconds to compute a prompt token that is not cached
    fakes = [FakeEndpoint(f"gpu-{n}", responder="judge", latency=Latency(tokens=5), prefix_cache=cache) for n in range(4)]
    with FakeFleet(fakes) as fleet:
        few = Limits(max_concurrency=4, adaptive=False)  # with this limit most rollouts wait, as in a larger batch
        async with QRewardClient([endpoint.model_copy(update={"limits": few}) for endpoint in fleet.endpoints], **settings) as client:
            batch = await client.batch_chat_completion(ROLLOUTS, model=MODEL, temperature=0, timeout=60, hedge=False)
        computed = sum(fleet.seen(fake.name).computed for fake in fakes)
    print(f"{label:8} {batch.stats.ok} judged in {batch.stats.seconds:.1f} s, {computed:,} prompt tokens computed")
    print(f"{'':8} {str(batch.stats).splitlines()[0]}")


async def main() -> None:
    await judge("without", prefix_affinity=None)
    await judge("with")


if __name__ == "__main__":
    asyncio.run(main())
