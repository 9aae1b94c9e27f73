"""The same stream read by us and by the official openai SDK. The shapes of streams are compared in ``tests/codecs``."""

from __future__ import annotations

from typing import Any

import openai
from essays import essay_of

from qreward import QRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Latency

MESSAGES: Any = [{"role": "user", "content": "question 7"}]


async def test_a_fleet_streams_the_same_to_the_openai_sdk_and_to_us() -> None:
    fake = FakeEndpoint("a", latency=Latency(tokens=60, per_token=0.0002), responder="essays:essay")
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    async with FakeFleet([fake]) as fleet, QRewardClient(fleet.endpoints) as ours:
        async with openai.AsyncOpenAI(base_url=fleet.urls["a"], api_key="none", max_retries=0) as theirs:
            expected = [chunk async for chunk in await theirs.chat.completions.create(messages=MESSAGES, model="judge-7b", **options)]
        stream = ours.stream_chat_completion(MESSAGES, "judge-7b")
        chunks = [chunk async for chunk in stream.chunks()]
        for chunk in (*expected, *chunks):
            chunk.created = 0  # by the server's clock
        assert chunks == expected
        assert (await stream.final()).choices[0].message.content == essay_of(7)
        assert chunks[-1].usage is not None
