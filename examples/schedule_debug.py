"""``debug=True`` writes down what is decided about each call: why it waits, what failed, when it is tried again."""

from __future__ import annotations

import asyncio
import logging
import sys

from qreward import schedule

TRIES: list[str] = []


@schedule(debug=True, retry_times=3, retry_interval=0.05, limit_size=2, limit_window=0.2)
async def judge(answer: str) -> float:
    TRIES.append(answer)
    if len(TRIES) < 3:
        raise ConnectionError("the judge is away")
    return 1.0


async def main() -> None:
    print("scores:", await asyncio.gather(judge("a"), judge("b")))


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s")
    logging.getLogger("qreward.schedule").setLevel(logging.DEBUG)
    asyncio.run(main())
