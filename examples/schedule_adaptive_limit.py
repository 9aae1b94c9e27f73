"""``adaptive_limit``: how many calls may be under way moves with what they show. Here a judge that holds eight, untold."""

from __future__ import annotations

import asyncio

from qreward import schedule

HELD = 0
CAPACITY = 8


class Overloaded(Exception):
    """What the judge says to a ninth. Its status is understood, as that of httpx, aiohttp, requests, openai and grpc is."""

    status_code = 429


@schedule(
    adaptive_limit=True,
    adaptive_limit_min=2,
    adaptive_limit_max=64,
    retry_times=50,
    retry_interval=0.01,
    retry_max_interval=0.05,
    timeout=60,
)
async def judge(answer: str) -> int:
    global HELD  # noqa: PLW0603
    if HELD >= CAPACITY:
        raise Overloaded(answer)
    HELD += 1
    try:
        await asyncio.sleep(0.01)
    finally:
        HELD -= 1
    return len(answer)


async def main() -> None:
    results = await asyncio.gather(*(judge(f"answer {number}") for number in range(600)))
    stats = judge.stats()
    print(f"{len(results)} results, none lost; the judge was asked {stats.tries} times and turned {stats.overloaded} away")
    print(f"the limit came down from 32 to {stats.limit}")


if __name__ == "__main__":
    asyncio.run(main())
