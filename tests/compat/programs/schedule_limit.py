"""A rate limit, for all calls and for each key."""

import asyncio
import time

from qreward.utils import schedule

WINDOW = 0.2


@schedule(limit_size=2, limit_window=WINDOW)
async def limited() -> float:
    return time.monotonic()


@schedule(limit_size=2, limit_window=WINDOW, key_func=lambda group: str(group))
async def limited_by_group(group: str) -> float:
    return time.monotonic()


async def main() -> None:
    begun = sorted(await asyncio.gather(*(limited() for _ in range(6))))
    print("two in a window:", all(late - early > 0.9 * WINDOW for early, late in zip(begun, begun[2:])))
    groups = ["a", "b"] * 2
    await asyncio.gather(*map(limited_by_group, groups))
    print("four at once, in two groups")


if __name__ == "__main__":
    asyncio.run(main())
