"""The numbers of each call, for async and blocking functions."""

import asyncio
from typing import Any

from qreward.utils import schedule
from qreward.utils.scheduler import ScheduleMetrics

seen: list[Any] = []


def log(metrics: ScheduleMetrics) -> None:
    numbers = [metrics.total_calls, metrics.success_count, metrics.failure_count, metrics.retry_count]
    print(*numbers, 0 <= metrics.avg_latency_ms <= metrics.total_latency_ms < 60_000)


@schedule(retry_times=3, retry_interval=0.01, default_result="failed", metrics_callback=log, speed_up_max_multiply=1)
async def flaky(failures: list[int]) -> str:
    await asyncio.sleep(0.01)
    if failures:
        failures.pop()
        raise RuntimeError("failed")
    return "done"


class Aggregator:
    def __init__(self) -> None:
        self.calls = self.successes = 0

    def collect(self, metrics: ScheduleMetrics) -> None:
        self.calls += 1
        self.successes += metrics.success_count


aggregator = Aggregator()


@schedule(retry_times=2, retry_interval=0.01, default_result="fallback", metrics_callback=aggregator.collect)
async def one_of_many(number: int) -> str:
    if number % 5 == 0:
        raise ValueError("failed")
    return "ok"


@schedule(retry_times=1, metrics_callback=lambda metrics: seen.append(metrics))
def blocking(number: int) -> int:
    return 2 * number


async def main() -> None:
    print([await flaky([1] * failures) for failures in (0, 2)])
    await asyncio.gather(*map(one_of_many, range(20)))
    print(aggregator.calls, aggregator.successes)


if __name__ == "__main__":
    asyncio.run(main())
    print([blocking(number) for number in range(3)], [metrics.success_count for metrics in seen])
