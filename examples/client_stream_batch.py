"""Many responses token by token in one loop. One of the streams breaks off: its result is an error, and the other streams continue.

Run it: ``python examples/client_stream_batch.py``.
"""

from __future__ import annotations

import asyncio
import json

from connect import MODEL, connect, conversation

from qreward import QRewardClient, QRewardError, Result
from qreward.testing import FakeEndpoint, Faults, Latency

PACE = Latency(base=0.05, per_token=0.01, tokens=24)
FLEET = (
    FakeEndpoint(name="judge-0", models=["judge-*"], responder="judge", latency=PACE, max_concurrency=2),
    # with this seed, the first stream of this endpoint breaks off, and its next sixty streams do not
    FakeEndpoint(name="judge-1", models=["judge-*"], responder="judge", latency=PACE, max_concurrency=2, faults=Faults(cut=0.02, seed=917)),
)
ROLLOUTS = [conversation(f"What is {n} times 7?", str(n * 7), str(n * 7 + n % 2)) for n in range(8)]


def report(index: int, error: QRewardError) -> None:
    """Called after the last token of a failed stream."""
    print(f"\nstream {index} failed: {error}")


async def interleaved(client: QRewardClient) -> None:
    stream = client.batch_stream_chat_completion(ROLLOUTS, model=MODEL, temperature=0, timeout=60, on_stream_error=report)
    async for index, _token in stream:
        print(index, end="", flush=True)  # the stream of this token
    batch = await stream.results()
    rewards = [json.loads(result.text)["score"] if result.ok else None for result in batch]
    print(f"\n{batch.stats.ok} of {batch.stats.items} judged: {rewards}")


async def one_by_one(client: QRewardClient) -> None:
    stream = client.batch_stream_chat_completion(ROLLOUTS, model=MODEL, temperature=0, timeout=60, max_concurrent_streams=3)
    async for index, event in stream.events():
        if isinstance(event, Result):  # the last event of each stream
            print(f"stream {index} ended at {event.endpoint} after {event.latency:.2f} s: {event.text if event.ok else event.error}")


async def main() -> None:
    async with connect(*FLEET) as client:
        await interleaved(client)
        await one_by_one(client)


if __name__ == "__main__":
    asyncio.run(main())
