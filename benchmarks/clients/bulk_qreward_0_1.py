"""QReward 0.1.7: its manager with one proxy for each endpoint, round robin. Its ``schedule`` retries with the next proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _bulk import MODEL, Drive, Job, Messages, Tally, ask, main

from qreward.client import OpenAIChatProxy, OpenAIChatProxyManager  # type: ignore[attr-defined]
from qreward.utils import schedule  # type: ignore[import-not-found]

NO_RATE_LIMIT = 1e9  # requests per second; the default of 50 would limit the client more than the endpoints do


@asynccontextmanager
async def manager(job: Job) -> AsyncIterator[Drive]:
    in_flight, timeout = job.settings["in_flight"], job.settings["timeout"]
    client = OpenAIChatProxyManager()
    for number, url in enumerate(job.urls):
        proxy = OpenAIChatProxy(url, api_key="none", max_concurrent=in_flight, rate_limiter_bucket_size=NO_RATE_LIMIT)
        client.add_proxy(f"endpoint-{number}", proxy)

    @schedule(**job.settings["schedule"])  # type: ignore[untyped-decorator]
    async def call(messages: Messages) -> str | None:
        verdict: str | None = await client.select_proxy().chat_completion(messages, model=MODEL, timeout=timeout)
        return verdict

    async def drive(work: list[Messages], tally: Tally) -> None:
        await asyncio.gather(*(ask(call, index, messages, tally) for index, messages in enumerate(work)))

    try:
        yield drive
    finally:
        await client.close()


if __name__ == "__main__":
    main(manager)
