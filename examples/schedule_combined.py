"""All together, as a reward function would have it: limits, retries, a hedge, a breaker, a time limit and a default."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from qreward import Priority, ScheduleConfig, ScheduleMetrics, schedule

RNG = random.Random(7)  # noqa: S311 - for faults, not secrets
OUTCOMES: Counter[str] = Counter()


def count(metrics: ScheduleMetrics) -> None:
    OUTCOMES[metrics.outcome] += 1


CONFIG = ScheduleConfig(
    timeout=10.0,
    retry_times=4,
    retry_interval=0.02,
    limit_size=100,
    limit_window=0.1,
    max_concurrency=16,
    hedged_request_time="p95",
    circuit_breaker_threshold=20,
    default_result=None,
    priority=Priority.HIGH,
    exception_types=(ConnectionError, TimeoutError),
    metrics_callback=count,
)


@schedule(CONFIG)
async def judge(answer: str) -> float | None:
    """A judge that fails one time in ten, and is stuck one time in fifty."""
    fate = RNG.random()
    if fate < 0.1:
        raise ConnectionError("reset by peer")
    await asyncio.sleep(0.5 if fate > 0.98 else 0.01)
    return len(answer) / 10


async def main() -> None:
    scores = await asyncio.gather(*(judge(f"answer {number}") for number in range(300)))
    stats = judge.stats()
    print(f"{len(scores)} scores, {sum(score is None for score in scores)} of them missing; outcomes {dict(OUTCOMES)}")
    print(f"{stats.tries} tries: {stats.retries} retries, {stats.hedges} hedges")
    CONFIG.update(max_concurrency=4, retry_times=8)  # holds from now on
    print(f"at most {judge.stats().limit} at once from now on: {await judge('one more')}")


if __name__ == "__main__":
    asyncio.run(main())
