"""litellm's ``Router`` with one deployment for each endpoint. The job sets the number of calls at once, retries, cooldowns and strategy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import litellm  # type: ignore[import-not-found]
from _bulk import MODEL, Drive, Job, Messages, Tally, main, workers


@asynccontextmanager
async def router(job: Job) -> AsyncIterator[Drive]:
    deployments = [
        {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none"}} for url in job.urls
    ]
    settings = dict(job.settings)
    at_once = settings.pop("in_flight") * len(job.urls)
    client = litellm.Router(model_list=deployments, **settings)

    async def call(messages: Messages) -> str | None:
        completion = await client.acompletion(model=MODEL, messages=messages, temperature=0)
        content: str | None = completion.choices[0].message.content
        return content

    async def drive(work: list[Messages], tally: Tally) -> None:
        await workers(at_once, iter(enumerate(work)), call, tally)

    yield drive


if __name__ == "__main__":
    main(router)
