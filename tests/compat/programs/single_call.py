"""One call: of a proxy that stays open, of one in ``async with``, and of one of a manager."""

import asyncio
import os

from qreward.client import OpenAIChatProxy, OpenAIChatProxyManager

MESSAGES = [{"role": "user", "content": "Hello, how are you?"}]


def proxy() -> OpenAIChatProxy:
    return OpenAIChatProxy(base_url=os.getenv("OPENAI_API_BASE"), api_key=os.getenv("OPENAI_API_KEY"))


async def plain() -> None:
    print(await proxy().chat_completion(messages=MESSAGES, model="judge-7b"))


async def in_context() -> None:
    async with proxy() as open_proxy:
        print(await open_proxy.chat_completion(messages=MESSAGES, model="judge-7b"))


async def of_a_manager() -> None:
    manager = OpenAIChatProxyManager()
    manager.add_proxy("default", proxy())
    print(await manager.proxy("default").chat_completion(messages=MESSAGES, model="judge-7b"))
    await manager.close()


if __name__ == "__main__":
    asyncio.run(plain())
    asyncio.run(in_context())
    asyncio.run(of_a_manager())
