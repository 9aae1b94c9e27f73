"""Ours, one call at a time: each worker makes its next ``chat_completion`` when its last one is answered, as for all other clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _harness import Drive, Job, Messages, closed_loop, main
from _ours import MODEL, open_client


@asynccontextmanager
async def calls(job: Job) -> AsyncIterator[Drive]:
    async with open_client(job) as client:

        async def call(messages: Messages) -> str | None:
            completion = await client.chat_completion(messages, model=MODEL, temperature=0)
            return completion.choices[0].message.content

        yield closed_loop(call, job)


if __name__ == "__main__":
    main(calls)
