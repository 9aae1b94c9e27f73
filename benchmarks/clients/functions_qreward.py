"""``@schedule`` with retry, rate limit, circuit breaker and metrics; and with a time limit, which needs a thread if the function blocks."""

from __future__ import annotations

import asyncio
from typing import Any

from _functions import KEY_WINDOW, by_keys, main, nothing, nothing_blocking, one_after_another, one_after_another_blocking

from qreward import ScheduleMetrics, schedule

SEEN = [0]


def count(metrics: ScheduleMetrics) -> None:
    SEEN[0] += metrics.tries


SETTINGS: dict[str, Any] = {
    "retry_times": 3,
    "limit_size": 1_000_000,
    "circuit_breaker_threshold": 5,
    "metrics_callback": count,
}

if __name__ == "__main__":
    usual, timed = schedule(**SETTINGS), schedule(**SETTINGS, timeout=60.0)
    keyed = schedule(retry_times=3, circuit_breaker_threshold=5, limit_size=10, limit_window=KEY_WINDOW, key_func=lambda number: number)
    main(
        {
            "async": lambda calls: asyncio.run(one_after_another(usual(nothing), calls)),
            "async, timeout": lambda calls: asyncio.run(one_after_another(timed(nothing), calls)),
            "sync": lambda calls: one_after_another_blocking(usual(nothing_blocking), calls),
            "sync, timeout": lambda calls: one_after_another_blocking(timed(nothing_blocking), calls),
            "keys": lambda calls: asyncio.run(by_keys(keyed(nothing), calls)),
        }
    )
