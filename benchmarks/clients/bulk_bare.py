"""Bare aiohttp, a fixed number of workers for each endpoint, one shared queue, no retry and no time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from _bulk import MODEL, Call, Drive, Job, Messages, Tally, main, workers


@asynccontextmanager
async def bare(job: Job) -> AsyncIterator[Drive]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        def to(url: str) -> Call:
            async def call(messages: Messages) -> str | None:
                body = {"model": MODEL, "messages": messages, "temperature": 0}
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    response.raise_for_status()
                    content: str | None = (await response.json())["choices"][0]["message"]["content"]
                    return content

            return call

        async def drive(work: list[Messages], tally: Tally) -> None:
            items = iter(enumerate(work))
            await asyncio.gather(*(workers(job.settings["in_flight"], items, to(url), tally) for url in job.urls))

        yield drive


if __name__ == "__main__":
    main(bare)
