"""``metrics_callback`` gets one record a call, of failed calls too. If it raises, the call is not affected."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from qreward import CircuitOpen, ScheduleMetrics, schedule

OUTCOMES: Counter[str] = Counter()


def record(metrics: ScheduleMetrics) -> None:
    OUTCOMES[metrics.outcome] += 1
    print(f"{metrics.outcome:>12}: {metrics.tries} tries, {metrics.retries} retries, error {metrics.error}, key {metrics.key}")


@schedule(
    retry_times=1,
    retry_interval=0.01,
    timeout=0.2,
    circuit_breaker_threshold=3,
    key_func=lambda answer: answer,
    metrics_callback=record,
    exception_types=ConnectionError,
)
async def judge(answer: str) -> float:
    if answer == "away":
        raise ConnectionError("the judge is away")
    if answer == "slow":
        await asyncio.sleep(10.0)
    return 1.0


async def main() -> None:
    for answer in ("good", "away", "slow", "away", "away"):
        with contextlib.suppress(ConnectionError, TimeoutError, CircuitOpen):
            await judge(answer)
    print(dict(OUTCOMES))


if __name__ == "__main__":
    asyncio.run(main())
