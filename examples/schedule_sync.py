"""``@schedule`` on blocking functions and methods. They are called as before, even from other threads or while an event loop runs.

Run it: ``python examples/schedule_sync.py``.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from qreward import schedule


@schedule(max_concurrency=4, retry_times=2, retry_interval=0.05, exception_types=ConnectionError)
def score(answer: str) -> float:
    """A reward function that waits, as one that calls a server does."""
    time.sleep(0.02)
    return len(answer) / 10


class Verifier:
    """Methods, static methods and class methods are decorated in the same way."""

    def __init__(self, bonus: float) -> None:
        self.bonus = bonus

    @schedule(retry_times=1)
    def check(self, answer: str) -> float:
        return self.bonus + score(answer)


async def main() -> float:
    return score("called in an event loop, which it blocks")


if __name__ == "__main__":
    print("one call:", score("forty-two"))
    print("a method:", Verifier(1.0).check("forty-two"))
    print("in a loop:", asyncio.run(main()))
    with ThreadPoolExecutor(16) as threads:
        scores = list(threads.map(score, ["answer"] * 40))
    print(f"16 threads: {len(scores)} scores, at most {score.stats().limit} calls at once")
