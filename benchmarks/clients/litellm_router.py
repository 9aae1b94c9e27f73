"""litellm's ``Router`` with one deployment an endpoint and its default strategy (``simple-shuffle``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import litellm  # type: ignore[import-not-found]
from _harness import Drive, Job, Messages, closed_loop, main


@asynccontextmanager
async def router(job: Job) -> AsyncIterator[Drive]:
    deployments = [
        {"model_name": "judge", "litellm_params": {"model": "openai/judge", "api_base": url, "api_key": "none"}} for url in job.urls
    ]
    client = litellm.Router(model_list=deployments)

    async def call(messages: Messages) -> str | None:
        completion = await client.acompletion(model="judge", messages=messages, temperature=0)
        content: str | None = completion.choices[0].message.content
        return content

    yield closed_loop(call, job)


if __name__ == "__main__":
    main(router)
