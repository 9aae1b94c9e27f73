"""Priority decides wherever something is scarce, also between functions that share a pool: here two slots of one judge."""

from __future__ import annotations

import asyncio

from qreward import Priority, schedule

ORDER: list[str] = []


@schedule(pool="judge", max_concurrency=2, priority=Priority.LOW)
async def judge_bulk(number: int) -> None:
    ORDER.append(f"bulk {number}")
    await asyncio.sleep(0.01)


@schedule(pool="judge", priority=Priority.HIGH)
async def judge_now(number: int) -> None:
    ORDER.append(f"URGENT {number}")
    await asyncio.sleep(0.01)


async def main() -> None:
    bulk = [asyncio.ensure_future(judge_bulk(number)) for number in range(8)]
    await asyncio.sleep(0)
    urgent = [asyncio.ensure_future(judge_now(number)) for number in range(2)]
    await asyncio.gather(*bulk, *urgent)
    print("\n".join(ORDER))


if __name__ == "__main__":
    asyncio.run(main())
