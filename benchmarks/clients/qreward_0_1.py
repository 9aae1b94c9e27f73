"""QReward 0.1.7: its manager, round robin, each proxy with its share of the calls in flight and a rate limit that is never reached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from _harness import Drive, Job, Messages, closed_loop, main

from qreward.client import OpenAIChatProxy, OpenAIChatProxyManager  # type: ignore[attr-defined]

NO_RATE_LIMIT = 1e9  # requests per second; with the default of 50, the benchmark would measure the limiter


@asynccontextmanager
async def manager(job: Job) -> AsyncIterator[Drive]:
    share = max(1, job.concurrency // len(job.urls))
    client = OpenAIChatProxyManager()
    for index, url in enumerate(job.urls):
        client.add_proxy(
            f"endpoint-{index}",
            OpenAIChatProxy(url, api_key="none", max_concurrent=share, rate_limiter_bucket_size=NO_RATE_LIMIT),
        )

    async def call(messages: Messages) -> str | None:
        verdict: str | None = await client.select_proxy().chat_completion(messages, model="judge")
        return verdict

    try:
        yield closed_loop(call, job)
    finally:
        await client.close()


if __name__ == "__main__":
    main(manager)
