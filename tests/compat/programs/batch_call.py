"""Batches of conversations and of embeddings, with functions for the results and the errors."""

import asyncio
import os

from qreward.client import OpenAIChatProxy

BATCH = [[{"role": "system", "content": "Be helpful."}, {"role": "user", "content": f"Hello, {number}."}] for number in range(12)]


async def plain() -> None:
    proxy = OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE"), api_key=os.getenv("OPENAI_API_KEY"))
    results = await proxy.batch_chat_completion(batch_messages=BATCH, model="judge-7b")
    print(len(results), len(set(results)), min(results))
    vectors = await proxy.batch_embeddings(batch_sentences=[["123", "456"], ["456", "789"]], model="embed-1")
    print(len(vectors), [[len(each.embedding) > 0 for each in item] for item in vectors])
    print(vectors[0][1].embedding == vectors[1][0].embedding)


async def in_context() -> None:
    async with OpenAIChatProxy(
        base_url=os.getenv("OPENAI_API_BASE"),
        api_key=os.getenv("OPENAI_API_KEY"),
        max_concurrent=4,
        chat_process_func=lambda completion: completion,
    ) as proxy:
        print(len(await proxy.with_temperature(0.5).with_timeout(30).batch_chat_completion(batch_messages=BATCH, model="judge-7b")))


async def refused() -> None:
    async with OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE"), api_key="wrong", error_process_func=lambda error: None) as proxy:
        print(await proxy.batch_chat_completion(batch_messages=BATCH[:2], model="judge-7b"))


if __name__ == "__main__":
    asyncio.run(plain())
    asyncio.run(in_context())
    asyncio.run(refused())
