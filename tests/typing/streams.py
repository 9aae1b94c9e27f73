"""Streams as a user writes them. Checked by mypy and pyright, never run."""

# pyright: strict
from __future__ import annotations

from typing import assert_type

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from qreward import (
    BatchResult,
    BatchStream,
    QRewardClient,
    QRewardError,
    Result,
    Stream,
    StreamInterrupted,
    StreamRestarted,
    SyncBatchStream,
    SyncQRewardClient,
    SyncStream,
)

Message = dict[str, str]
ASK: list[Message] = [{"role": "user", "content": "6 x 7?"}]


async def one(client: QRewardClient) -> str:
    stream = client.stream_chat_completion(ASK, model="judge-7b", temperature=0, on_interrupt="raise")
    assert_type(stream, Stream)
    try:
        async for token in stream:
            assert_type(token, str)
    except StreamInterrupted as error:
        return error.text
    async for chunk in stream.chunks():
        assert_type(chunk, ChatCompletionChunk)
    async for event in stream.events():
        if isinstance(event, StreamRestarted):
            assert_type(event.error, QRewardError | None)
        else:
            assert_type(event, str)
    assert_type(await stream, Stream)
    async with stream as entered:
        assert_type(entered, Stream)
    assert_type(stream.result, Result[ChatCompletion] | None)
    assert_type(await stream.final(), ChatCompletion)
    return stream.text


async def many(client: QRewardClient) -> None:
    stream = client.batch_stream_chat_completion([ASK], model="judge-7b", max_concurrent_streams=8, on_stream_error=print)
    assert_type(stream, BatchStream)
    async for index, token in stream:
        assert_type(index, int)
        assert_type(token, str)
    async for _, event in stream.events():
        assert_type(event, str | StreamRestarted | Result[ChatCompletion])
    assert_type(await stream.results(), BatchResult[ChatCompletion])


def blocking(client: SyncQRewardClient) -> None:
    with client.stream_chat_completion(ASK, model="judge-7b") as stream:
        assert_type(stream, SyncStream)
        for token in stream:
            assert_type(token, str)
        for chunk in stream.chunks():
            assert_type(chunk, ChatCompletionChunk)
        assert_type(stream.final(), ChatCompletion)
    streams = client.batch_stream_chat_completion([ASK], model="judge-7b")
    assert_type(streams, SyncBatchStream)
    for index, token in streams:
        assert_type(index, int)
        assert_type(token, str)
    assert_type(streams.results(), BatchResult[ChatCompletion])


def wrong(client: QRewardClient) -> None:
    client.stream_chat_completion(ASK, model="judge-7b", on_interrupt="ignore")  # type: ignore[arg-type]  # pyright: ignore
