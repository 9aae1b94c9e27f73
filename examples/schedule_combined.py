"""A reward function with limits, retries, a hedge, a circuit breaker, a time limit and a default. One setting changes while it runs.

Run it: ``python examples/schedule_combined.py``.
"""

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
    """A judge that fails in one call of ten, and hangs in one of fifty."""
    draw = RNG.random()
    if draw < 0.1:
        raise ConnectionError("reset by peer")
    await asyncio.sleep(0.5 if draw > 0.98 else 0.01)
    return len(answer) / 10


async def main() -> None:
    scores = await asyncio.gather(*(judge(f"answer {number}") for number in range(300)))
    stats = judge.stats()
    print(f"{len(scores)} scores, {sum(score is None for score in scores)} of them missing; outcomes {dict(OUTCOMES)}")
    print(f"{stats.tries} tries: {stats.retries} retries, {stats.hedges} hedges")
    CONFIG.update(max_concurrency=4, retry_times=8)  # applies to the calls that follow
    print(f"after the update: a score of {await judge('one more')}, at most {judge.stats().limit} calls at once")


if __name__ == "__main__":
    asyncio.run(main())
