"""The openai SDK for a bulk: one ``AsyncOpenAI`` on aiohttp for each endpoint, with the retries and the time limit of the job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from _bulk import MODEL, Call, Job, Messages
from openai import AsyncOpenAI, DefaultAioHttpClient


@asynccontextmanager
async def calls(job: Job) -> AsyncIterator[list[Call]]:
    """Open one client for each endpoint, and yield a call of each."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_client(url, job)) for url in job.urls]


@asynccontextmanager
async def _client(url: str, job: Job) -> AsyncIterator[Call]:
    http = DefaultAioHttpClient()
    limits = {"max_retries": job.settings["max_retries"], "timeout": job.settings["timeout"]}
    async with AsyncOpenAI(base_url=url, api_key="none", http_client=http, **limits) as client:

        async def call(messages: Messages) -> str | None:
            typed: Any = messages
            completion = await client.chat.completions.create(model=MODEL, messages=typed, temperature=0)
            return completion.choices[0].message.content

        yield call
