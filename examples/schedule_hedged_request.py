"""Hedging: a call that takes unusually long is tried a second time beside the first, and the first result counts."""

from __future__ import annotations

import asyncio
import time

from qreward import schedule

PLACES = iter(range(1000))


@schedule(hedged_request_time=0.05, hedged_request_max_times=1, hedged_request_proportion=0.1)
async def judge(_answer: str) -> int:
    place = next(PLACES)
    try:
        await asyncio.sleep(2.0 if place == 0 else 0.02)  # the very first is stuck
    except asyncio.CancelledError:
        print(f"  try {place} lost, and was cancelled")
        raise
    return place


BLOCKING = iter(range(1000))


@schedule(hedged_request_time="p90")
def judge_blocking(_answer: str) -> int:
    place = next(BLOCKING)
    time.sleep(0.5 if place == 40 else 0.005)
    return place


async def main() -> None:
    begun = time.monotonic()
    place = await judge("42")
    print(f"try {place} won after {time.monotonic() - begun:.2f} s; {judge.stats().hedges} hedge")


if __name__ == "__main__":
    asyncio.run(main())
    for _ in range(40):
        judge_blocking("learn how long it usually takes")
    begun = time.monotonic()
    judge_blocking("this one is stuck")
    print(f"a blocking function: {time.monotonic() - begun < 0.4} that it did not wait for the stuck try")
