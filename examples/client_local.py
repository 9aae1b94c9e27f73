"""One model behind an API key, on two vLLM servers and as a function in this process. They share a bulk, and urgent calls go first.

Run it: ``python examples/client_local.py``.
"""

from __future__ import annotations

import asyncio
import time

from qreward import Endpoint, Limits, QRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Latency


def verdict(messages: list[dict[str, str]]) -> str:
    return "yes" if "42" in messages[-1]["content"] else "no"


def local_judge(messages: list[dict[str, str]]) -> str:
    time.sleep(0.02)  # a model on the GPU of this machine; the function runs in a thread, so the event loop stays free
    return verdict(messages)


FAKES = [
    FakeEndpoint("api", api_key="secret", rpm=6000, burst=100, responder=verdict, latency=Latency(base=0.2)),
    FakeEndpoint("vllm-0", kind="vllm", max_concurrency=16, responder=verdict, latency=Latency(base=0.05)),
    FakeEndpoint("vllm-1", kind="vllm", max_concurrency=16, responder=verdict, latency=Latency(base=0.1)),
]


async def main() -> None:
    async with FakeFleet(FAKES) as fleet:
        endpoints = [
            Endpoint(fleet.urls["api"], name="api", api_key="secret", models=["judge"], limits=Limits(rpm=6000)),
            Endpoint(fleet.urls["vllm-0"], name="vllm-0", kind="vllm", models=["judge"]),
            Endpoint(fleet.urls["vllm-1"], name="vllm-1", kind="vllm", models=["judge"]),
            Endpoint.local(local_judge, name="local", models=["judge"], max_concurrency=2),
        ]
        async with QRewardClient(endpoints) as client:
            chats = [[{"role": "user", "content": f"Is it {number}?"}] for number in range(600)]
            await client.chat_completion(chats[0], model="judge")
            bulk = asyncio.create_task(client.batch_chat_completion(chats, model="judge", priority="low"))
            for _ in range(5):
                await asyncio.sleep(0.05)
                began = time.monotonic()
                await client.chat_completion(chats[42], model="judge", priority="high")
                print(f"an urgent call: {time.monotonic() - began:.2f} s")
            batch = await bulk
    print([result.index for result in batch if result.text == "yes"][:3])
    print(batch.stats)


asyncio.run(main())
