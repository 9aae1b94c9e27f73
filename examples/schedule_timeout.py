"""``timeout`` is one budget of wall-clock time for the whole call: waiting, retries and hedges included."""

from __future__ import annotations

import asyncio
import time

from qreward import RequestTimeout, schedule


@schedule(timeout=0.2, retry_times=5, retry_interval=0.05)
async def judge(seconds: float) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print("  the function was cancelled, and could clean up")
        raise
    return "done in time"


@schedule(timeout=0.2)
def judge_blocking(seconds: float) -> str:
    time.sleep(seconds)
    return "done in time"


async def main() -> None:
    print(await judge(0.05))
    begun = time.monotonic()
    try:
        await judge(30.0)
    except RequestTimeout as error:  # also a TimeoutError
        print(f"after {time.monotonic() - begun:.1f} s: {error}")


if __name__ == "__main__":
    asyncio.run(main())
    print(judge_blocking(0.05))
    try:
        judge_blocking(1.0)
    except TimeoutError as error:  # its thread ends by itself: nothing can stop it
        print(error)
