"""A stream: shown as it arrives, collected, and with parameters."""

import asyncio
import os

from qreward.client import OpenAIChatProxy

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a neural network?"}]


def proxy() -> OpenAIChatProxy:
    return OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE", ""), api_key=os.getenv("OPENAI_API_KEY"))


async def shown() -> None:
    async with proxy() as open_proxy:
        async for token in open_proxy.stream_chat_completion(messages=MESSAGES, model="judge-7b"):
            print(token, end="", flush=True)
        print()


async def collected() -> None:
    async with proxy() as open_proxy:
        tokens = []
        async for token in open_proxy.stream_chat_completion(messages=MESSAGES, model="judge-7b", temperature=0.0, timeout=50):
            tokens.append(token)
        print(len(tokens) > 1, "".join(tokens))


if __name__ == "__main__":
    asyncio.run(shown())
    asyncio.run(collected())
