"""``limit_size`` holds in any window, per key: here two keys of a provider, with five calls a fifth of a second each."""

from __future__ import annotations

import asyncio
import time

from qreward import schedule

WINDOW = 0.2
LATE = 0.1  # seconds by which a busy machine may begin a call after its turn, and so nearer to the next
STARTS: dict[str, list[float]] = {"key-a": [], "key-b": []}


@schedule(limit_size=5, limit_window=WINDOW, key_func=lambda key, _prompt: key)
async def ask(key: str, prompt: str) -> str:
    STARTS[key].append(time.monotonic())
    return prompt.upper()


async def main() -> None:
    begun = time.monotonic()
    await asyncio.gather(*(ask(key, "judge this") for _ in range(15) for key in STARTS))
    print(f"30 calls in {time.monotonic() - begun:.2f} s: three windows of five for each of {ask.stats().keys} keys")
    for key, starts in STARTS.items():
        most = max(sum(start <= other < start + WINDOW - LATE for other in starts) for start in starts)
        print(f"{key}: at most {most} calls at once")


if __name__ == "__main__":
    asyncio.run(main())
