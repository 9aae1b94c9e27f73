"""A node goes away with the actor on it, and another comes: run as a program, for it needs a cluster of its own."""

from __future__ import annotations

import asyncio
import time

import ray
from ray.cluster_utils import Cluster

from qreward.integrations.ray import ScorerPool

STORE = 80 * 2**20


def slow(texts: list[str]) -> list[int]:
    time.sleep(2)
    return [len(text) for text in texts]


async def main(cluster: Cluster) -> None:
    node = {"num_cpus": 1, "resources": {"scorers": 1}, "object_store_memory": STORE}
    first = cluster.add_node(**node)
    async with ScorerPool(slow, backend="ray", resources={"scorers": 1}) as pool:
        call = asyncio.ensure_future(pool(["a", "bb"]))
        while not pool.stats().in_flight:  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        cluster.remove_node(first, allow_graceful=False)
        cluster.add_node(**node)
        print("scores", await call, "retried", pool.stats().retried, "poisonous", pool.stats().poisonous)


if __name__ == "__main__":
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        asyncio.run(asyncio.wait_for(main(nodes), 200))
    finally:
        ray.shutdown()
        nodes.shutdown()
