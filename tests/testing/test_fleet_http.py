"""What a fake judge says: the shapes of the OpenAI API, and the same words on every endpoint."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

from fleet_tools import Answer, serving, user
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from shared_tools import each

from qreward.testing import FakeEndpoint, Latency, echo_of


def content_of(answer: Answer) -> str:
    content: str = json.loads(answer.body)["choices"][0]["message"]["content"]
    return content


def events_of(answer: Answer) -> list[str]:
    text = answer.body.decode()
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]


async def test_a_chat_has_the_whole_shape_of_the_openai_api() -> None:
    async with serving(FakeEndpoint("a", latency=Latency(tokens=33))) as client:
        answer = await client.chat("a")
        assert answer.headers["Content-Type"].startswith("application/json")
        completion = ChatCompletion.model_validate_json(answer.body)
        assert (completion.model, completion.object, completion.choices[0].finish_reason) == ("m", "chat.completion", "stop")
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 33
        assert completion.usage.total_tokens == completion.usage.prompt_tokens + 33
        assert client.fleet.seen("a").tokens == completion.usage.total_tokens
        several = ChatCompletion.model_validate_json((await client.chat("a", n=3)).body)
        assert [choice.index for choice in several.choices] == [0, 1, 2]
        assert several.usage is not None
        assert several.usage.completion_tokens == 99


async def test_every_endpoint_echoes_the_same_words_however_the_client_wrote_its_json_and_other_messages_other_words() -> None:
    odd = [{"content": "grüße \ud800 \u2028", "role": "user", "n": 1.5}]
    async with serving(FakeEndpoint("a"), FakeEndpoint("b", latency=Latency(sigma=1, seed=9))) as client:
        texts = ("hi", "ho", "\ud83d\ude00 ß \u2028", "x" * 5_000_000)
        for text in texts:
            body = json.dumps({"model": "m", "messages": user(text)}).encode()
            for name in "ab":
                assert content_of(await client.post(name, "/chat/completions", body)) == echo_of(user(text))
        assert echo_of(user("hi")) != echo_of(user("ho"))
        ascii_only = json.dumps({"messages": odd, "model": "m"}, indent=2).encode()
        assert content_of(await client.post("a", "/chat/completions", ascii_only)) == echo_of(odd)
        assert content_of(await client.chat("a", "grüße")) == echo_of(user("grüße"))
        assert client.fleet.seen("a").duplicates == 0
        await client.post("a", "/chat/completions", json.dumps({"model": "other", "messages": odd}).encode())
        assert client.fleet.seen("a").duplicates == 1


@each("tokens", [1, 5, 28, 200])
async def test_a_stream_has_a_chunk_for_each_token_and_adds_up_to_the_answer(tokens: int) -> None:
    async with serving(FakeEndpoint("a", latency=Latency(tokens=tokens))) as client:
        answer = await client.chat("a", stream=True, stream_options={"include_usage": True})
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        *events, done = events_of(answer)
        chunks = [ChatCompletionChunk.model_validate_json(event) for event in events]
        assert done == "[DONE]"
        assert len(chunks) == tokens + 3  # the role, the end, the usage
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == echo_of(user("hi"))
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (tokens + 1) + ["stop"]
        assert chunks[-1].usage is not None
        assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], tokens)
        assert client.fleet.seen("a").answered == 1


async def test_a_stream_without_stream_options_has_no_usage_and_serves_n_choices() -> None:
    async with serving(FakeEndpoint("a", latency=Latency(tokens=4))) as client:
        chunks = [json.loads(event) for event in events_of(await client.chat("a", stream=True, n=2))[:-1]]
        assert not any("usage" in chunk for chunk in chunks)
        words = ["", ""]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            words[choice["index"]] += choice["delta"].get("content", "")
        assert words == [echo_of(user("hi"))] * 2


async def test_embeddings_come_in_order_depend_on_their_own_text_alone_and_are_the_same_numbers_in_base64() -> None:
    async with serving(FakeEndpoint("a"), FakeEndpoint("b")) as client:

        async def vectors(name: str, given: Any, **params: Any) -> list[list[float]]:
            answer = await client.post(name, "/embeddings", {"model": "e", "input": given, **params})
            parsed = CreateEmbeddingResponse.model_validate_json(answer.body)
            assert [item.index for item in parsed.data] == list(range(len(parsed.data)))
            return [item.embedding for item in parsed.data]

        x, y = await vectors("a", ["x", "y"])
        assert x != y
        assert await vectors("b", ["y", "x"]) == [y, x]
        assert await vectors("a", "x") == [x]
        assert len(await vectors("a", [1, 2, 3])) == 1
        assert len(await vectors("a", [[1, 2], [3]])) == 2
        assert len((await vectors("a", "x", dimensions=40))[0]) == 40
        assert math.isclose(math.hypot(*x), 1, rel_tol=1e-6)
        packed = await client.post("a", "/embeddings", {"model": "e", "input": "x", "encoding_format": "base64"})
        raw = base64.b64decode(json.loads(packed.body)["data"][0]["embedding"])
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == x


WRONG: list[tuple[str, bytes]] = [
    ("/chat/completions", b"{"),
    ("/chat/completions", b"[]"),
    ("/chat/completions", b'{"model": "m"}'),
    ("/chat/completions", b'{"model": "m", "messages": []}'),
    ("/chat/completions", b'{"model": "m", "messages": [1], "n": 0.5}'),
    ("/chat/completions", b'{"model": "m", "messages": [1], "n": 1000}'),
    ("/embeddings", b'{"model": "m", "input": []}'),
    ("/embeddings", b'{"model": "m", "input": ["good", ""]}'),
    ("/embeddings", b'{"model": "m", "input": "x", "dimensions": 0}'),
    ("/embeddings", b'{"model": "m", "input": "x", "encoding_format": "hex"}'),
    ("/embeddings", json.dumps({"model": "m", "input": ["x"] * 2049}).encode()),
]


async def test_a_request_that_is_none_gets_400_with_a_reason() -> None:
    async with serving(FakeEndpoint("a")) as client:
        answers = [await client.post("a", path, body) for path, body in WRONG]
        assert [place for place, answer in zip(WRONG, answers, strict=True) if answer.status != 400] == []
        assert all(json.loads(answer.body)["error"]["message"] for answer in answers)
        assert client.fleet.seen("a").errors == {"bad_request": len(WRONG)}


async def test_a_function_can_write_the_answers_and_its_failure_is_a_500_each_time() -> None:
    def shout(messages: list[Any]) -> str:
        if messages[0]["content"] == "poison":
            raise LookupError("no answer to that")
        return str(messages[0]["content"]).upper()

    async with serving(FakeEndpoint("a", responder=shout)) as client:
        assert content_of(await client.chat("a", "quiet")) == "QUIET"
        for _ in range(2):
            answer = await client.chat("a", "poison")
            assert (answer.status, b"no answer to that" in answer.body) == (500, True)
        seen = client.fleet.seen("a")
        assert (seen.answered, seen.errors, seen.in_flight) == (1, {"responder": 2}, 0)
