"""The openai SDK, with workers for each endpoint that pull from one queue of conversations, so a fast endpoint gets more of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _bulk import Drive, Job, Messages, Tally, main, workers
from _bulk_openai import calls


@asynccontextmanager
async def pulled(job: Job) -> AsyncIterator[Drive]:
    async with calls(job) as clients:

        async def drive(work: list[Messages], tally: Tally) -> None:
            items = iter(enumerate(work))
            await asyncio.gather(*(workers(job.settings["in_flight"], items, call, tally) for call in clients))

        yield drive


if __name__ == "__main__":
    main(pulled)
