"""``timeout`` limits the time of a whole call, including waiting, retries and hedges. Then a coroutine is cancelled; a thread continues.

Run it: ``python examples/schedule_timeout.py``.
"""

from __future__ import annotations

import asyncio
import time

from qreward import RequestTimeout, schedule


@schedule(timeout=0.2, retry_times=5, retry_interval=0.05)
async def judge(seconds: float) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print("the coroutine was cancelled, and could clean up")
        raise
    return "done in time"


@schedule(timeout=0.2)
def judge_blocking(seconds: float) -> str:
    time.sleep(seconds)
    return "done in time"


async def main() -> None:
    print("async:", await judge(0.05))
    try:
        await judge(30.0)
    except RequestTimeout as error:
        print("async:", error)


if __name__ == "__main__":
    asyncio.run(main())
    print("blocking:", judge_blocking(0.05))
    try:
        judge_blocking(1.0)
    except TimeoutError as error:  # RequestTimeout is a TimeoutError; the thread continues until the function returns
        print("blocking:", error)
