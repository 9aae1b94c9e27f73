"""The same stream read by us and by the official openai SDK: the same chunks, the same text, the same completion.

Where the two may differ, it is written down here, shape by shape or member by member.
"""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import openai
from acceptance_tools import serving
from aiohttp import web
from essays import essay_of
from openai.types.chat import ChatCompletionChunk
from stream_shapes import FILTERS, SHAPES

from qreward import Endpoint, QRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Latency

MESSAGES: Any = [{"role": "user", "content": "question 7"}]
PROMISED = {"id": "", "created": 0}
"""Members that openai's type promises, and what we put where the server left them out; the SDK puts None. So is ``model``."""

THEY_LOSE_THE_FIRST = ("a byte order mark",)
"""The SDK takes the mark for a part of the first field's name."""

THEY_CANNOT = ("missing ids",)
"""The SDK gives the chunks, but makes no completion of them."""

THEY_LOSE: dict[str, Any] = {
    "role in every chunk": {"choices": [{"message": {"role": "assistant"}}]},  # they have assistantassistant
    "OpenRouter": {"choices": [{"message": {"role": "assistant"}, "native_finish_reason": "STOP"}]},
    "a field nobody knows": {"extra": [1, None]},
    "vLLM": {"choices": [{"stop_reason": 151_645}]},
    "SGLang": {"choices": [{"matched_stop": 128_009}]},
    "DeepSeek": {"system_fingerprint": "fp_ds"},
    "Azure": {
        "choices": [{"content_filter_results": FILTERS}],
        "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": FILTERS}],
    },
    "Groq": {"x_groq": {"id": "req_1", "usage": {"queue_time": 0.02}}},
    "llama.cpp": {"timings": {"prompt_n": 5, "predicted_ms": 1.5}},
}
"""What servers say in later chunks, which we keep and the SDK's accumulation drops or repeats."""


class Player:
    """A server that answers each request with the shape whose name is the model, in pieces that end anywhere."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())
        assert asked["stream"] is True
        body, rng = SHAPES[asked["model"]], Random(asked["model"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while body:
            size = rng.choice((1, 2, 3, 50, 200, 1000))
            await response.write(body[:size])
            await asyncio.sleep(0)
            body = body[size:]
        return response


def sdk(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


async def their_chunks(client: openai.AsyncOpenAI, model: str) -> list[ChatCompletionChunk]:
    options: Any = {"include_usage": True}
    return [
        chunk async for chunk in await client.chat.completions.create(messages=MESSAGES, model=model, stream=True, stream_options=options)
    ]


def filled(chunk: ChatCompletionChunk, model: str) -> dict[str, Any]:
    """A chunk as it was sent, with what openai's type promises."""
    sent = {name: value for name, value in chunk.model_dump(exclude_unset=True).items() if value is not None or name not in PROMISED}
    return {**PROMISED, "model": model, **sent, "object": "chat.completion.chunk"}


def with_more(value: Any, more: Any) -> Any:
    """Members put to those there are, at any depth."""
    if isinstance(value, dict):
        return {**value, **{name: with_more(value.get(name), each) for name, each in more.items()}}
    return [with_more(*pair) for pair in zip(value, more, strict=True)] if isinstance(value, list) else more


def said(value: Any) -> Any:
    """The members of a completion that say something, without those that only the SDK's accumulation makes."""
    if isinstance(value, dict):
        inner = {name: said(each) for name, each in value.items() if each is not None}
        if "function" in inner:  # the place of a tool call belongs to its stream
            inner.pop("index", None)
        if "message" in inner:
            inner["message"].setdefault("role", "assistant")
        return inner
    return [said(each) for each in value] if isinstance(value, list) else value


async def read_by_both(theirs: openai.AsyncOpenAI, ours: QRewardClient, name: str) -> None:
    """The chunks, the text and the completion of one shape."""
    expected = [filled(chunk, name) for chunk in await their_chunks(theirs, name)]
    stream = ours.stream_chat_completion(MESSAGES, name)
    chunks = [chunk async for chunk in stream.chunks()]
    assert all(type(chunk) is ChatCompletionChunk for chunk in chunks)
    found = [chunk.model_dump(exclude_unset=True) for chunk in chunks]
    assert found[1 if name in THEY_LOSE_THE_FIRST else 0 :] == expected
    spoken = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == 0]
    tokens = [token async for token in ours.stream_chat_completion(MESSAGES, name)]
    assert tokens == [text for text in spoken if text]
    final = await stream.final()
    assert stream.text == "".join(spoken) == (final.choices[0].message.content or "")
    if name not in THEY_CANNOT:
        async with theirs.chat.completions.stream(messages=MESSAGES, model=name) as their_stream:
            async for _ in their_stream:
                pass
            whole = said(their_stream.current_completion_snapshot.model_dump())
        assert said((await ours.stream_chat_completion(MESSAGES, name).final()).model_dump()) == with_more(whole, THEY_LOSE.get(name, {}))


async def test_the_openai_sdk_gives_the_same_chunks_text_and_completion_of_every_shape() -> None:
    wrong = {}
    async with serving(Player().handle) as url, sdk(url) as theirs, QRewardClient([Endpoint(url, proxy="")]) as ours:
        for name in SHAPES:
            try:
                await read_by_both(theirs, ours, name)
            except AssertionError as error:
                wrong[name] = str(error)
    assert wrong == {}


async def test_a_fleet_streams_the_same_to_the_openai_sdk_and_to_us() -> None:
    fake = FakeEndpoint("a", latency=Latency(tokens=60, per_token=0.0002), responder="essays:essay")
    async with FakeFleet([fake]) as fleet, sdk(fleet.urls["a"]) as theirs, QRewardClient(fleet.endpoints) as ours:
        expected = await their_chunks(theirs, "judge-7b")
        chunks = [chunk async for chunk in ours.stream_chat_completion(MESSAGES, "judge-7b").chunks()]
        for chunk in (*expected, *chunks):
            chunk.created = 0  # by the server's clock
        assert chunks == expected
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == essay_of(7)
        assert chunks[-1].usage is not None
