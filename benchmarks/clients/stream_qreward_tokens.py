"""Ours, token by token: workers that each read one ``stream_chat_completion`` at a time, as for all other clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _harness import Drive, Job, Messages, closed_loop, main
from _ours import MODEL, open_client


@asynccontextmanager
async def streams(job: Job) -> AsyncIterator[Drive]:
    async with open_client(job) as client:

        async def call(messages: Messages) -> str | None:
            return "".join([token async for token in client.stream_chat_completion(messages, model=MODEL, temperature=0)])

        yield closed_loop(call, job)


if __name__ == "__main__":
    main(streams)
