"""Streams of one response: by tokens, by chunks, ended early, interrupted, and restarted after an interruption.

Run it: ``python examples/client_stream.py``.
"""

from __future__ import annotations

import asyncio

from connect import MODEL, connect, conversation

from qreward import QRewardClient, StreamInterrupted, StreamRestarted
from qreward.testing import FakeEndpoint, Faults, Latency

STEADY = FakeEndpoint("steady", models=["judge-*", "shaky-*"], responder="judge", latency=Latency(base=0.05, per_token=0.01, tokens=30))
SHAKY = STEADY.model_copy(update={"name": "shaky", "models": ("shaky-*", "broken-*"), "faults": Faults(cut=1.0)})  # each stream breaks off
MESSAGES = conversation("What is the capital of Finland?", reference="Helsinki", candidate="helsinki")


async def show_all(client: QRewardClient) -> None:
    stream = client.stream_chat_completion(MESSAGES, model=MODEL, temperature=0, timeout=60)
    async for token in stream:  # nothing is sent before this line
        print(token, end="|", flush=True)
    usage = (await stream.final()).usage
    print(f"\nthe text:  {len(stream.text)} characters, {usage.completion_tokens if usage else '?'} tokens")
    chunks = [chunk async for chunk in client.stream_chat_completion(MESSAGES, model=MODEL).chunks()]
    print(f"as chunks: {len(chunks)} of openai's {type(chunks[0]).__name__}")


async def end_early(client: QRewardClient) -> None:
    async with client.stream_chat_completion(MESSAGES, model=MODEL) as stream:
        async for _ in stream:
            if "," in stream.text:  # the verdict is complete; the reason is not needed
                break
    print(f"ended at:  {stream.text}")  # the connection is closed, so the server stops generating


async def interrupted(client: QRewardClient) -> None:
    fake = "shaky" in client.stats()
    stream = client.stream_chat_completion(MESSAGES, model="shaky-7b" if fake else MODEL, on_interrupt="restart")
    async for event in stream.events():
        if isinstance(event, StreamRestarted):
            print(f"restarted after {len(event.text)} characters, which do not count")
    print(f"complete:  {stream.text}")
    try:
        await client.stream_chat_completion(MESSAGES, model="broken-7b" if fake else MODEL).final()
    except StreamInterrupted as error:
        print(f"broke off: {error.text} ({type(error.__cause__).__name__})")


async def main() -> None:
    async with connect(SHAKY, STEADY) as client:
        await show_all(client)
        await end_early(client)
        await interrupted(client)


if __name__ == "__main__":
    asyncio.run(main())
