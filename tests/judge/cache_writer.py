"""Writes answers into the file of a cache without end, and says how far it came: to be killed in the middle of it."""

from __future__ import annotations

import asyncio
import sys

from qreward.judge.cache import Cache, CacheEntry
from qreward.judge.codec import ModelReply


async def main(path: str, name: str, count: int) -> None:
    cache = Cache(path)
    for number in range(count):
        cache.keep(CacheEntry("m", name, ModelReply(f"{name}-{number} " * 50), f"{name}-{number}".encode()))
        if number % 50 == 49:
            await asyncio.sleep(0.001)
            print(number + 1, flush=True)
    await asyncio.to_thread(cache.close)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
