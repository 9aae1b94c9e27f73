"""litellm's ``Router`` with one deployment for each endpoint and its default strategy (``simple-shuffle``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import litellm  # type: ignore[import-not-found]
from _harness import Drive, Job, Messages, closed_loop, main

Ask = Callable[[Any, Messages], Awaitable[str | None]]


async def whole(client: Any, messages: Messages) -> str | None:
    """Make one call that is answered in one piece."""
    completion = await client.acompletion(model="judge", messages=messages, temperature=0)
    content: str | None = completion.choices[0].message.content
    return content


async def streamed(client: Any, messages: Messages) -> str | None:
    """Make one call whose answer is streamed, and read it token by token."""
    stream = await client.acompletion(model="judge", messages=messages, temperature=0, stream=True)
    said = []
    async for chunk in stream:
        if chunk.choices and (content := chunk.choices[0].delta.content):
            said.append(content)
    return "".join(said)


def router(ask: Ask = whole) -> Callable[[Job], AbstractAsyncContextManager[Drive]]:
    """Return the opener of the client."""

    @asynccontextmanager
    async def client(job: Job) -> AsyncIterator[Drive]:
        deployments = [
            {"model_name": "judge", "litellm_params": {"model": "openai/judge", "api_base": url, "api_key": "none"}} for url in job.urls
        ]
        made = litellm.Router(model_list=deployments)

        async def call(messages: Messages) -> str | None:
            return await ask(made, messages)

        yield closed_loop(call, job)

    return client


if __name__ == "__main__":
    main(router())
