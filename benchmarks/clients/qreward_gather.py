"""Ours, all at once: as many concurrent ``chat_completion`` calls as there are conversations, most of them waiting in our queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _harness import Drive, Job, Messages, main
from _ours import MODEL, open_client


@asynccontextmanager
async def gather(job: Job) -> AsyncIterator[Drive]:
    async with open_client(job) as client:

        async def drive(batch: list[Messages]) -> int:
            waiting = (client.chat_completion(messages, model=MODEL, temperature=0) for messages in batch)
            completions = await asyncio.gather(*waiting)
            return sum(completion.choices[0].message.content == job.verdict for completion in completions)

        yield drive


if __name__ == "__main__":
    main(gather)
