"""Answers that are not whole, as a caller meets them: in a batch, in a single call, in streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from client_tools import HI, MODEL, Recorder, completion, endpoint, use

from qreward import InvalidResponse, QRewardClient, Retry, StreamInterrupted

FAILED = ("abort", "error", "content_filter", "SAFETY")


def ending(request: httpx.Request) -> httpx.Response:
    """Ends the answer in the way that the question names."""
    document = completion(request)
    document["choices"][0]["finish_reason"] = json.loads(request.content)["messages"][-1]["content"]
    return httpx.Response(200, json=document)


def streaming(reason: str) -> Callable[[httpx.Request], httpx.Response]:
    def reply(_: httpx.Request) -> httpx.Response:
        deltas: list[tuple[str, str | None]] = [("Score: ", None), ("1", None), ("", reason)]
        choices = [{"index": 0, "delta": {"content": text}, "finish_reason": finish} for text, finish in deltas]

        async def events() -> AsyncIterator[bytes]:
            for choice in choices:
                yield b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"
                await asyncio.sleep(0.02)  # so that the first token is given out before the end is known
            yield b"data: [DONE]\n\n"

        return httpx.Response(200, content=events(), headers={"content-type": "text/event-stream"})

    return reply


def test_in_a_batch_a_cut_answer_is_one_and_says_so_and_one_that_was_given_up_or_withheld_is_an_error() -> None:
    reasons = ["stop", "tool_calls", "length", *FAILED]
    client = QRewardClient([endpoint(Recorder(ending))], retry=Retry(attempts=1))
    batch = use(client, lambda client: client.batch_chat_completion(([{"role": "user", "content": text}] for text in reasons), MODEL))
    assert [result.ok for result in batch] == [True] * 3 + [False] * 4
    assert [result.finish_reason for result in batch] == ["stop", "tool_calls", "length"] + [None] * 4
    assert batch.texts() == ["re: stop", "re: tool_calls", "re: length"] + [None] * 4
    assert {index: type(error) for index, error in batch.errors.items()} == dict.fromkeys(range(3, 7), InvalidResponse)
    assert [reason for index, reason in enumerate(FAILED, 3) if repr(reason.lower()) not in str(batch.errors[index])] == []


def test_a_stream_that_the_server_gave_up_is_interrupted_and_keeps_its_text_and_one_at_its_token_limit_is_whole() -> None:
    async def read(client: QRewardClient) -> StreamInterrupted:
        stream = client.stream_chat_completion(HI, MODEL)
        with pytest.raises(StreamInterrupted) as caught:  # noqa: PT012 - it comes after the tokens
            async for token in stream:
                seen.append(token)
        with pytest.raises(StreamInterrupted):
            await stream.final()
        return caught.value

    for reason in FAILED:
        seen: list[str] = []
        error = use(QRewardClient([endpoint(Recorder(streaming(reason)))], retry=Retry(attempts=1)), read)
        assert (error.text, "".join(seen)) == ("Score: 1", "Score: 1"), reason
        assert reason.lower() in str(error.__cause__)

    async def whole(client: QRewardClient) -> Any:
        stream = client.stream_chat_completion(HI, MODEL, max_tokens=3)
        return await stream.final(), stream.result

    final, result = use(QRewardClient([endpoint(Recorder(streaming("length")))]), whole)
    assert final.choices[0].finish_reason == result.finish_reason == "length"
    assert result.text == "Score: 1"
