"""The load-balancing strategies over the same three endpoints, and an endpoint that is taken out of service.

Run it: ``python examples/client_load_balancing.py``.
"""

from __future__ import annotations

import asyncio

from connect import MODEL, connect, conversation

from qreward import LoadBalanceStrategy, QRewardClient
from qreward.testing import FakeEndpoint, Latency

FLEET = (
    FakeEndpoint(name="gpu-0", models=["judge-*"], responder="judge", latency=Latency(base=0.01), max_concurrency=32),
    FakeEndpoint(name="gpu-1", models=["judge-*"], responder="judge", latency=Latency(base=0.02), max_concurrency=32),
    FakeEndpoint(name="gpu-2", models=["judge-*"], responder="judge", latency=Latency(base=0.08), max_concurrency=32),
)
ROLLOUTS = [conversation(f"What is {n} plus {n}?", str(n + n), str(n + n)) for n in range(20)]


async def shares(client: QRewardClient, label: str) -> None:
    """Judge the rollouts and print how many each endpoint answered."""
    # hedge=False: without copies of the last items at a faster endpoint, the numbers show the strategy
    batch = await client.batch_chat_completion(ROLLOUTS, model=MODEL, temperature=0, timeout=60, hedge=False)
    answered = ", ".join(f"{name} {stats.answered}" for name, stats in sorted(batch.stats.endpoints.items()))
    print(f"{label:22} {batch.stats.ok} answered: {answered}")


async def main() -> None:
    async with connect(*FLEET) as client:
        names = list(client.stats())
        for strategy in LoadBalanceStrategy:
            weights = {names[0]: 3.0} if strategy is LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN else None
            client.register_model_route(MODEL, names, strategy=strategy, weights=weights)
            await shares(client, strategy)
        if len(names) > 1:
            client.mark_unhealthy(names[0])
            await shares(client, f"without {names[0]}")
            client.mark_healthy(names[0])


if __name__ == "__main__":
    asyncio.run(main())
