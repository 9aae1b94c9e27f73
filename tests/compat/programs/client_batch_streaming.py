"""Many streams at once: all, two at a time, and with one that fails."""

import asyncio
import os
from collections import defaultdict

from qreward.client import OpenAIChatProxy

errors: list[int] = []


def on_error(index: int, error: Exception) -> None:
    errors.append(index)


async def main() -> None:
    batch = [[{"role": "user", "content": f"Count to {number}."}] for number in range(5)]
    for options in ({}, {"max_concurrent_streams": 2}, {"on_stream_error": on_error}):
        async with OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE", ""), api_key=os.getenv("OPENAI_API_KEY")) as proxy:
            streams = defaultdict(list)
            async for index, token in proxy.batch_stream_chat_completion(batch_messages=batch, model="judge-7b", **options):
                streams[index].append(token)
            print(sorted(streams), min("".join(tokens) for tokens in streams.values()))
    async with OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE", ""), api_key="wrong") as proxy:
        found = [
            item async for item in proxy.batch_stream_chat_completion(batch_messages=batch, model="judge-7b", on_stream_error=on_error)
        ]
        print(found, sorted(errors))


if __name__ == "__main__":
    asyncio.run(main())
