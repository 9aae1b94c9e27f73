"""An adaptive limit over a healthy and over a failing service: every call ends."""

import asyncio
import itertools

from qreward.utils import schedule

numbers = itertools.count()


@schedule(
    limit_size=50,
    adaptive_limit=True,
    adaptive_limit_min=10,
    adaptive_limit_max=200,
    adaptive_error_threshold=0.3,
    adaptive_latency_threshold=2.0,
    adaptive_window_seconds=5.0,
    retry_times=0,
)
async def healthy(number: int) -> str:
    await asyncio.sleep(0.01)
    return f"OK {number}"


@schedule(
    limit_size=50,
    limit_window=0.1,
    adaptive_limit=True,
    adaptive_limit_min=5,
    adaptive_error_threshold=0.2,
    adaptive_window_seconds=3.0,
    retry_times=1,
    retry_interval=0.01,
    speed_up_max_multiply=0,
    default_result="degraded_fallback",
)
async def degraded(number: int) -> str:
    if number % 4 == 0:
        raise ConnectionError("failed")
    return f"OK {number}"


async def main() -> None:
    print(await asyncio.gather(*map(healthy, range(20))) == [f"OK {number}" for number in range(20)])
    results = await asyncio.gather(*map(degraded, range(20)))
    print(results.count("degraded_fallback"), sum(result.startswith("OK") for result in results))


if __name__ == "__main__":
    asyncio.run(main())
