"""``priority`` decides which waiting call is next, also between functions that share a pool. Here the pool allows two calls at once.

Run it: ``python examples/schedule_priority.py``.
"""

from __future__ import annotations

import asyncio

from qreward import Priority, schedule

ORDER: list[str] = []


@schedule(pool="judge", max_concurrency=2, priority=Priority.LOW)
async def judge_batch(number: int) -> None:
    ORDER.append(f"batch {number}")
    await asyncio.sleep(0.01)


@schedule(pool="judge", priority=Priority.HIGH)
async def judge_now(number: int) -> None:
    ORDER.append(f"urgent {number}")
    await asyncio.sleep(0.01)


async def main() -> None:
    batch = [asyncio.ensure_future(judge_batch(number)) for number in range(8)]
    await asyncio.sleep(0)
    urgent = [asyncio.ensure_future(judge_now(number)) for number in range(2)]
    await asyncio.gather(*batch, *urgent)
    print("in the order of their start:", ", ".join(ORDER))


if __name__ == "__main__":
    asyncio.run(main())
