"""A batch of rollouts over two endpoints of different speed. Results have the order of the input; a failed item is a typed error.

Run it: ``python examples/client_batch.py``.
"""

from __future__ import annotations

import asyncio
import json

from connect import MODEL, connect, conversation

from qreward import Priority, Result
from qreward.testing import FakeEndpoint, Latency

FLEET = (
    FakeEndpoint(name="judge-fast", models=["judge-*"], responder="judge", latency=Latency(base=0.01), max_concurrency=8),
    FakeEndpoint(name="judge-slow", models=["judge-*"], responder="judge", latency=Latency(base=0.05), max_concurrency=4),
)


def show(result: Result[object]) -> None:
    """Called as each item ends, in the order of their ends."""
    if not result.ok:
        print(f"item {result.index} failed: {result.error}")


async def main() -> None:
    rollouts = [conversation(f"What is {n} times 7?", str(n * 7), str(n * 7 + n % 2)) for n in range(60)]
    async with connect(*FLEET) as client:
        batch = await client.batch_chat_completion(rollouts, model=MODEL, temperature=0, priority=Priority.HIGH, timeout=60, on_result=show)
    rewards = [json.loads(result.text)["score"] if result.ok else None for result in batch]
    print(f"{batch.stats.ok} of {batch.stats.items} judged in {batch.stats.seconds:.2f} s")
    print(f"mean reward {sum(r for r in rewards if r is not None) / len(rewards):.2f}")
    for name, stats in batch.stats.endpoints.items():
        print(f"{name}: sent {stats.sent}, answered {stats.answered}, retried {stats.retried}")


if __name__ == "__main__":
    asyncio.run(main())
