"""Bare aiohttp, events split at their blank lines, each chunk decoded by msgspec: the least an asyncio program needs for a stream.

It handles only what this server sends: no comments, no CRLF, no errors in the stream, and no end that comes too early.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from _harness import Drive, Job, Messages, closed_loop, main
from bare import open_session, urls_of


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta


class Chunk(msgspec.Struct):
    choices: list[Choice]


@asynccontextmanager
async def streams(job: Job) -> AsyncIterator[Drive]:
    encoder, decoder, urls = msgspec.json.Encoder(), msgspec.json.Decoder(Chunk), urls_of(job)
    async with open_session() as session:

        async def call(messages: Messages) -> str | None:
            body = encoder.encode({"model": "judge", "messages": messages, "temperature": 0, "stream": True})
            said: list[str] = []
            rest = b""
            async with session.post(next(urls), data=body, allow_redirects=False) as response:
                if response.status != 200:
                    raise RuntimeError(f"status {response.status}")
                while data := await response.content.readany():
                    *events, rest = (rest + data).split(b"\n\n")
                    for event in events:
                        if event != b"data: [DONE]":
                            said += [choice.delta.content for choice in decoder.decode(event[6:]).choices if choice.delta.content]
            return "".join(said)

        yield closed_loop(call, job)


if __name__ == "__main__":
    main(streams)
