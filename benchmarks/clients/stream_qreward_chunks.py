"""Ours, chunk by chunk: as with tokens, but each chunk becomes an object of the openai package, as in the openai SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _harness import Drive, Job, Messages, closed_loop, main
from _ours import MODEL, open_client


@asynccontextmanager
async def streams(job: Job) -> AsyncIterator[Drive]:
    async with open_client(job) as client:

        async def call(messages: Messages) -> str | None:
            said = []
            async for chunk in client.stream_chat_completion(messages, model=MODEL, temperature=0).chunks():
                if chunk.choices and (content := chunk.choices[0].delta.content):
                    said.append(content)
            return "".join(said)

        yield closed_loop(call, job)


if __name__ == "__main__":
    main(streams)
