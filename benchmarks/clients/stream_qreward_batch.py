"""Ours, all at once: the tokens of all conversations from one ``batch_stream_chat_completion``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _harness import Drive, Job, Messages, main
from _ours import MODEL, open_client


@asynccontextmanager
async def streams(job: Job) -> AsyncIterator[Drive]:
    async with open_client(job) as client:

        async def drive(batch: list[Messages]) -> int:
            said: list[list[str]] = [[] for _ in batch]
            async for index, token in client.batch_stream_chat_completion(batch, model=MODEL, temperature=0):
                said[index].append(token)
            return sum("".join(pieces) == job.verdict for pieces in said)

        yield drive


if __name__ == "__main__":
    main(streams)
