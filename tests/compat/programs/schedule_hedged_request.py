"""A second try beside one that takes too long; the first result is returned."""

import asyncio

from qreward.utils import schedule

tries: list[int] = []


@schedule(hedged_request_time=0.05, retry_times=1)
async def slow_once(number: int) -> int:
    tries.append(number)
    await asyncio.sleep(60 if len(tries) == 1 else 0.01)
    return number


@schedule(debug=True, hedged_request_time=5, retry_times=100, hedged_request_max_times=1)
async def quick(number: int) -> int:
    await asyncio.sleep(0.01)
    return number


async def many() -> list[int]:
    return await asyncio.gather(*map(quick, range(200)))


if __name__ == "__main__":
    print(asyncio.run(slow_once(7)), len(tries))
    print(asyncio.run(many()) == list(range(200)))
