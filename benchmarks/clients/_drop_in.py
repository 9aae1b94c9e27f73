"""The openai SDK over its own connection pools and over our transport. Streams if an answer has several pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from _harness import Drive, Job, Messages, closed_loop
from _openai import Ask, openai_client, streamed, whole
from _ours import open_client
from openai import AsyncOpenAI

from qreward.integrations.openai import BASE_URL, Transport, transport

Opens = Callable[[Job], AbstractAsyncContextManager[Drive]]


def ask_of(job: Job) -> Ask:
    return streamed if job.pieces > 1 else whole


def over_pools(make_http_client: Callable[[], Any]) -> Opens:
    """Open one SDK client with its own pool for each endpoint, and use them round robin."""
    return lambda job: openai_client(make_http_client, ask_of(job))(job)


def over_fleet(make_http_client: Callable[[Transport], Any]) -> Opens:
    """Open one SDK client over a ``QRewardClient`` of all endpoints."""

    @asynccontextmanager
    async def client(job: Job) -> AsyncIterator[Drive]:
        ask = ask_of(job)
        async with open_client(job) as fleet:
            http_client = make_http_client(transport(fleet))
            async with AsyncOpenAI(base_url=BASE_URL, api_key="none", http_client=http_client) as sdk:

                async def call(messages: Messages) -> str | None:
                    return await ask(sdk, messages)

                yield closed_loop(call, job)

    return client
