"""Scores batches with the reward servers of ``REWARD_URLS`` until it is stopped, and serves its metrics to Prometheus on port 9464.

Run it: ``docker compose up`` in this folder. README.md describes the example.
"""

from __future__ import annotations

import asyncio
import os
import random

from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

from qreward import Endpoint, QRewardClient, RewardModel

RNG = random.Random(0)  # noqa: S311 - an example's load, not a secret


def rollout() -> tuple[str, str]:
    """A prompt and a response, which is right in half of the cases and no number in one of a hundred."""
    first, second = RNG.randrange(100), RNG.randrange(100)
    response = "none" if RNG.random() < 0.01 else str(first * second + RNG.randrange(2))
    return f"What is {first} times {second}?", response


async def main() -> None:
    model = RewardModel(template="{prompt} {response}")
    endpoints = [Endpoint(url, kind="openrlhf", api_key="${REWARD_TOKEN}", reward=model) for url in os.environ["REWARD_URLS"].split()]
    async with QRewardClient(endpoints) as client:
        while True:
            batch = await client.batch_score([rollout() for _ in range(RNG.randrange(50, 1000))], model="reward", timeout=30)
            print(batch.stats, flush=True)
            await asyncio.sleep(1)


if __name__ == "__main__":
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    start_http_server(int(os.environ.get("METRICS_PORT", "9464")), addr=os.environ.get("METRICS_ADDRESS", "0.0.0.0"))  # noqa: S104
    asyncio.run(main())
