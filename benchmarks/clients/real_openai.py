"""The openai SDK at real servers: an ``AsyncOpenAI`` on aiohttp for each, in turns, 16 calls in flight at each."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from _real import Job, main, rounds
from openai import AsyncOpenAI, DefaultAioHttpClient


async def send(job: Job) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                AsyncOpenAI(base_url=url, api_key=job["key"], timeout=600, max_retries=10, http_client=DefaultAioHttpClient())
            )
            for url in job["urls"]
        ]
        places = [asyncio.Semaphore(job["settings"]["in_flight"]) for _ in clients]

        async def call(number: int, messages: Any, length: int) -> bool:
            turn = number % len(clients)
            async with places[turn]:
                await clients[turn].chat.completions.create(
                    model=job["model"], messages=messages, max_tokens=length, temperature=0, extra_body={"ignore_eos": True}
                )
            return True

        return await rounds(job, call)


if __name__ == "__main__":
    main(send)
