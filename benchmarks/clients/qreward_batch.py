"""Ours, in bulk: all conversations in one ``batch_chat_completion``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _harness import Drive, Job, Messages, main
from _ours import MODEL, open_client


@asynccontextmanager
async def bulk(job: Job) -> AsyncIterator[Drive]:
    async with open_client(job) as client:

        async def drive(batch: list[Messages]) -> int:
            answers = await client.batch_chat_completion(batch, model=MODEL, temperature=0)
            return sum(text == job.verdict for text in answers.texts())

        yield drive


if __name__ == "__main__":
    main(bulk)
