"""``hedged_request_time`` starts a second try while a first try takes unusually long. The result that arrives first is used.

Run it: ``python examples/schedule_hedge.py``.
"""

from __future__ import annotations

import asyncio
import time
from itertools import count

from qreward import schedule

TRIES = count()
BLOCKING_TRIES = count()


@schedule(hedged_request_time=0.05, hedged_request_max_times=1, hedged_request_proportion=0.1)
async def judge(_answer: str) -> int:
    number = next(TRIES)
    try:
        await asyncio.sleep(2.0 if number == 0 else 0.02)  # the first try hangs
    except asyncio.CancelledError:
        print(f"try {number} was cancelled")
        raise
    return number


@schedule(hedged_request_time="p90")  # a second try starts when the first takes longer than 90% of the calls so far
def judge_blocking(_answer: str) -> int:
    number = next(BLOCKING_TRIES)
    time.sleep(0.5 if number == 40 else 0.005)
    return number


async def main() -> None:
    start = time.monotonic()
    number = await judge("42")
    print(f"try {number} returned after {time.monotonic() - start:.2f} s; {judge.stats().hedges} hedge")


if __name__ == "__main__":
    asyncio.run(main())
    for _ in range(40):
        judge_blocking("so that the usual time is known")
    print(f"a blocking function: try {judge_blocking('this one hangs')} returned, {judge_blocking.stats().hedges} hedge")
