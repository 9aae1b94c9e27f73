"""``limit_size`` limits the calls in any window of time, by key. Here each of two keys of a provider allows five calls in 0.2 seconds.

Run it: ``python examples/schedule_limit.py``.
"""

from __future__ import annotations

import asyncio
import time

from qreward import schedule

WINDOW = 0.2
LATE = 0.1  # seconds by which a busy machine may start a call late
STARTS: dict[str, list[float]] = {"key-a": [], "key-b": []}


@schedule(limit_size=5, limit_window=WINDOW, key_func=lambda key, _prompt: key)
async def ask(key: str, prompt: str) -> str:
    STARTS[key].append(time.monotonic())
    return prompt.upper()


async def main() -> None:
    start = time.monotonic()
    await asyncio.gather(*(ask(key, "judge this") for _ in range(15) for key in STARTS))
    print(f"30 calls in {time.monotonic() - start:.2f} s: three windows of five for each of {ask.stats().keys} keys")
    for key, starts in STARTS.items():
        most = max(sum(start <= other < start + WINDOW - LATE for other in starts) for start in starts)
        print(f"{key}: at most {most} calls in a window")


if __name__ == "__main__":
    asyncio.run(main())
