"""A program on the OpenAI SDK uses all endpoints of a client. Each endpoint fails in one request of twenty, but every call succeeds.

Run it: ``python examples/openai_sdk.py``.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import openai
from connect import MODEL, connect, conversation
from pydantic import BaseModel

from qreward import QRewardClient
from qreward.integrations.openai import async_openai_client
from qreward.testing import FakeEndpoint, Faults, Latency

JUDGE = {"models": ["judge-*"], "responder": "judge", "max_concurrency": 8, "latency": Latency(base=0.02, tokens=20)}
FAKES = [FakeEndpoint(f"judge-{number}", faults=Faults(error_500=0.05, seed=number), **JUDGE) for number in range(2)]


class Verdict(BaseModel):
    verdict: str
    score: int
    reason: str


async def judge(sdk: openai.AsyncOpenAI, number: int) -> str:
    """Any code that takes an ``AsyncOpenAI``."""
    messages = conversation(f"{number} + {number}?", reference=str(2 * number), candidate=str(2 * number + number % 2))
    answer = await sdk.chat.completions.parse(model=MODEL, messages=messages, response_format=Verdict)  # type: ignore[arg-type]
    parsed = answer.choices[0].message.parsed
    return parsed.verdict if parsed else "none"


async def use(client: QRewardClient, sdk: openai.AsyncOpenAI) -> None:
    verdicts = Counter(await asyncio.gather(*(judge(sdk, number) for number in range(60))))
    print(f"60 judged: {verdicts['correct']} correct, {verdicts['incorrect']} incorrect")
    print("sent:     ", ", ".join(f"{name} {stats.sent}" for name, stats in client.stats().items()))
    messages = conversation("What is the capital of Finland?", reference="Helsinki", candidate="helsinki")
    print("a stream:  ", end="")
    async for chunk in await sdk.chat.completions.create(model=MODEL, messages=messages, stream=True):  # type: ignore[arg-type]
        print(chunk.choices[0].delta.content or "", end="|", flush=True)
    answer = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    print(f"\nwithout the SDK: {answer.choices[0].message.content}")


async def main() -> None:
    async with connect(*FAKES) as client, async_openai_client(client) as sdk:  # this line is the change
        await use(client, sdk)


if __name__ == "__main__":
    asyncio.run(main())
