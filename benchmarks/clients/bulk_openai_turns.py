"""The openai SDK with round robin over the endpoints, and a semaphore for each endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _bulk import Drive, Job, Messages, Tally, ask, main
from _bulk_openai import calls


@asynccontextmanager
async def in_turns(job: Job) -> AsyncIterator[Drive]:
    async with calls(job) as clients:
        semaphores = [asyncio.Semaphore(job.settings["in_flight"]) for _ in clients]

        async def one(index: int, messages: Messages, tally: Tally) -> None:
            turn = index % len(clients)
            async with semaphores[turn]:
                await ask(clients[turn], index, messages, tally)

        async def drive(work: list[Messages], tally: Tally) -> None:
            await asyncio.gather(*(one(index, messages, tally) for index, messages in enumerate(work)))

        yield drive


if __name__ == "__main__":
    main(in_turns)
