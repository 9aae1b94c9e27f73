"""``adaptive_limit`` finds out how many calls a judge takes at once. This judge rejects a ninth concurrent call, which no setting says.

Run it: ``python examples/schedule_adaptive_limit.py``.
"""

from __future__ import annotations

import asyncio

from qreward import schedule

CAPACITY = 8
running = 0


class Overloaded(Exception):
    """The judge's rejection. The status is read as those of httpx, aiohttp, requests, openai and grpc errors are."""

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
    global running  # noqa: PLW0603
    if running >= CAPACITY:
        raise Overloaded(answer)
    running += 1
    try:
        await asyncio.sleep(0.01)
    finally:
        running -= 1
    return len(answer)


async def main() -> None:
    results = await asyncio.gather(*(judge(f"answer {number}") for number in range(600)))
    stats = judge.stats()
    print(f"{len(results)} of 600 calls returned a result; {stats.overloaded} of {stats.tries} tries were rejected")
    print(f"the limit came down from 32 to {stats.limit}")


if __name__ == "__main__":
    asyncio.run(main())
