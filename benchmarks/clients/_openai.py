"""The openai SDK with one ``AsyncOpenAI`` for each endpoint, round robin, and otherwise with its defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

from _harness import Drive, Job, Messages, closed_loop
from openai import AsyncOpenAI

Ask = Callable[[AsyncOpenAI, Any], Awaitable[str | None]]


async def whole(client: AsyncOpenAI, messages: Any) -> str | None:
    """Make one call that is answered in one piece."""
    completion = await client.chat.completions.create(model="judge", messages=messages, temperature=0)
    return completion.choices[0].message.content


async def streamed(client: AsyncOpenAI, messages: Any) -> str | None:
    """Make one call whose answer is streamed, and read it token by token."""
    stream = await client.chat.completions.create(model="judge", messages=messages, temperature=0, stream=True)
    said = []
    async for chunk in stream:
        if chunk.choices and (content := chunk.choices[0].delta.content):
            said.append(content)
    return "".join(said)


def openai_client(make_http_client: Callable[[], Any], ask: Ask = whole) -> Callable[[Job], AbstractAsyncContextManager[Drive]]:
    """Return the opener of the client; ``make_http_client`` gives each ``AsyncOpenAI`` its ``http_client``, None for the SDK's default."""

    @asynccontextmanager
    async def client(job: Job) -> AsyncIterator[Drive]:
        async with AsyncExitStack() as stack:
            made = [AsyncOpenAI(base_url=url, api_key="none", http_client=make_http_client()) for url in job.urls]
            clients = cycle([await stack.enter_async_context(each) for each in made])

            async def call(messages: Messages) -> str | None:
                return await ask(next(clients), messages)

            yield closed_loop(call, job)

    return client
