"""Calls, batches and streams of a proxy that stays open, of one in ``async with``, and of one of a manager; and one that is refused."""

import asyncio
import os
from collections import defaultdict

from qreward.client import OpenAIChatProxy, OpenAIChatProxyManager

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, how are you?"}]
BATCH = [[{"role": "user", "content": f"Count to {number}."}] for number in range(5)]
errors: list[int] = []


def proxy(**settings) -> OpenAIChatProxy:
    return OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE"), api_key=os.getenv("OPENAI_API_KEY"), **settings)


async def calls() -> None:
    print(await proxy().chat_completion(messages=MESSAGES, model="judge-7b"))
    async with proxy() as open_proxy:
        print(await open_proxy.chat_completion(messages=MESSAGES, model="judge-7b"))
    manager = OpenAIChatProxyManager()
    manager.add_proxy("default", proxy())
    print(await manager.proxy("default").chat_completion(messages=MESSAGES, model="judge-7b"))
    await manager.close()


async def batches() -> None:
    open_proxy = proxy()
    results = await open_proxy.batch_chat_completion(batch_messages=BATCH, model="judge-7b")
    print(len(results), len(set(results)), results[0])
    vectors = await open_proxy.batch_embeddings(batch_sentences=[["123", "456"], ["456", "789"]], model="embed-1")
    print(len(vectors), [[len(each.embedding) > 0 for each in item] for item in vectors])
    print(vectors[0][1].embedding == vectors[1][0].embedding)
    async with proxy(max_concurrent=4, chat_process_func=lambda completion: completion) as limited:
        print(len(await limited.with_temperature(0.5).with_timeout(30).batch_chat_completion(batch_messages=BATCH, model="judge-7b")))


async def streams() -> None:
    async with proxy() as open_proxy:
        async for token in open_proxy.stream_chat_completion(messages=MESSAGES, model="judge-7b", temperature=0.0, timeout=50):
            print(token, end="", flush=True)
        print()
    for options in ({}, {"max_concurrent_streams": 2}, {"on_stream_error": on_error}):
        async with proxy() as open_proxy:
            found = defaultdict(list)
            async for index, token in open_proxy.batch_stream_chat_completion(batch_messages=BATCH, model="judge-7b", **options):
                found[index].append(token)
            print(sorted(found), len(found[0]) > 1, "".join(found[0]))


def on_error(index: int, error: Exception) -> None:
    errors.append(index)


async def refused() -> None:
    async with OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE"), api_key="wrong", error_process_func=lambda error: None) as wrong:
        print(await wrong.batch_chat_completion(batch_messages=BATCH[:2], model="judge-7b"))
        streams = wrong.batch_stream_chat_completion(batch_messages=BATCH, model="judge-7b", on_stream_error=on_error)
        print([item async for item in streams], sorted(errors))


if __name__ == "__main__":
    asyncio.run(calls())
    asyncio.run(batches())
    asyncio.run(streams())
    asyncio.run(refused())
