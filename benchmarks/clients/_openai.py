"""The openai SDK, one ``AsyncOpenAI`` an endpoint, taken in turn; everything else as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

from _harness import Drive, Job, Messages, closed_loop
from openai import AsyncOpenAI


def openai_client(make_http_client: Callable[[], Any]) -> Callable[[Job], AbstractAsyncContextManager[Drive]]:
    """The client; ``make_http_client`` gives each ``AsyncOpenAI`` its ``http_client``, None for the SDK's default."""

    @asynccontextmanager
    async def client(job: Job) -> AsyncIterator[Drive]:
        async with AsyncExitStack() as stack:
            made = [AsyncOpenAI(base_url=url, api_key="none", http_client=make_http_client()) for url in job.urls]
            clients = cycle([await stack.enter_async_context(each) for each in made])

            async def call(messages: Messages) -> str | None:
                typed: Any = messages
                completion = await next(clients).chat.completions.create(model="judge", messages=typed, temperature=0)
                return completion.choices[0].message.content

            yield closed_loop(call, job)

    return client
