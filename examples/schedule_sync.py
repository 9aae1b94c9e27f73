"""``@schedule`` on functions that block: called as before, also from many threads and where an event loop runs."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from qreward import schedule


@schedule(max_concurrency=4, retry_times=2, retry_interval=0.05, exception_types=ConnectionError)
def score(answer: str) -> float:
    """A reward function that takes a while, as one that asks a server would."""
    time.sleep(0.02)
    return len(answer) / 10


class Verifier:
    """Methods, static methods and class methods are decorated alike."""

    def __init__(self, bonus: float) -> None:
        self.bonus = bonus

    @schedule(retry_times=1)
    def check(self, answer: str) -> float:
        return self.bonus + score(answer)


async def main() -> float:
    return score("called where a loop runs, which stands still meanwhile")


if __name__ == "__main__":
    print("one call:", score("forty-two"))
    with ThreadPoolExecutor(16) as threads:
        scores = list(threads.map(score, ["answer"] * 40))
    stats = score.stats()
    print(f"16 threads: {len(scores)} scores, {stats.calls} calls, never more than {stats.limit} at once")
    print("a method:", Verifier(1.0).check("forty-two"))
    print("in a loop:", asyncio.run(main()))
