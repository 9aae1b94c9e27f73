"""The time limit of a whole call, with and without a default; 0 is no limit."""

import asyncio
import time
from typing import Any

from qreward.utils import schedule


@schedule(timeout=0.05, retry_times=0)
async def slow() -> str:
    await asyncio.sleep(30)
    return "never returned"


@schedule(timeout=0.05, retry_times=3, default_result="timeout_fallback")
async def slow_with_default() -> str:
    await asyncio.sleep(30)
    return "never returned"


@schedule(timeout=0.3, retry_times=1000, retry_interval=0.05, default_result="gave_up")
async def flaky(tracker: list[int]) -> str:
    tracker.append(1)
    await asyncio.sleep(0.05)
    raise ConnectionError("not available")


@schedule(timeout=0.05, retry_times=0, default_result="sync_timeout")
def slow_thread() -> str:
    time.sleep(0.5)
    return "never returned"


@schedule(timeout=0, retry_times=0)
async def no_limit() -> str:
    await asyncio.sleep(0.01)
    return "completed"


async def main() -> None:
    try:
        await slow()
    except asyncio.TimeoutError:
        print("timed out")
    print(await slow_with_default())
    tracker: list[Any] = []
    print(await flaky(tracker), 0 < len(tracker) < 100)
    print(await no_limit())


if __name__ == "__main__":
    asyncio.run(main())
    print(slow_thread())
