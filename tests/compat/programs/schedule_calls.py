"""Functions with retries, defaults, time limits, rate limits, hedges, a breaker, priorities and metrics, async and blocking."""

import asyncio
import time
from collections import Counter
from typing import Any

from qreward.utils import schedule
from qreward.utils.scheduler import Priority, ScheduleMetrics

tries: Counter[str] = Counter()
service = {"up": False}
WINDOW = 0.2


@schedule(retry_times=5, retry_interval=0.01, debug=True)
async def any_exception(number: int) -> int:
    tries["any"] += 1
    if tries["any"] < 3:
        raise BaseException("not this time")
    return number


@schedule(retry_times=30, exception_types=(asyncio.TimeoutError, TimeoutError), retry_interval=0.01, speed_up_max_multiply=0)
async def named(number: int) -> int:
    tries["named"] += 1
    if tries["named"] < 4:
        raise asyncio.TimeoutError("not this time")
    return number


@schedule(retry_times=30, default_result=0, retry_interval=0.01)
async def never(number: int) -> int:
    tries["never"] += 1
    await asyncio.sleep(0.02)
    raise BaseException("never")


@schedule(retry_times=1, retry_interval=0.01)
async def gives_up() -> None:
    raise BaseException("the last word")


@schedule(retry_times=5, retry_interval=0.01)
def blocking(number: int = 0) -> int:
    tries["blocking"] += 1
    if tries["blocking"] < 3:
        raise BaseException("not this time")
    return number


async def fail(number: int = 0) -> int:
    await asyncio.sleep(0.01)
    raise asyncio.TimeoutError("never")


none = schedule(retry_times=3, retry_interval=0.01, default_result=None)(fail)
of_arguments = schedule(retry_times=3, retry_interval=0.01, default_result=lambda num: num)(fail)
within = schedule(retry_times=1000, retry_interval=0.01, timeout=0.2, default_result="gave up")(fail)


@schedule(retry_times=10, timeout=5, default_result=0, exception_types=(TimeoutError,))
async def not_retried(num: int = 0) -> int:
    tries["not retried"] += 1
    raise ValueError("not retried")


@schedule(timeout=0.05, retry_times=0)
async def slow() -> str:
    await asyncio.sleep(30)
    return "never returned"


@schedule(timeout=0.05, retry_times=0, default_result="sync timeout")
def slow_thread() -> str:
    time.sleep(0.5)
    return "never returned"


@schedule(timeout=0, retry_times=0)
async def no_limit() -> str:
    await asyncio.sleep(0.01)
    return "completed"


@schedule(limit_size=2, limit_window=WINDOW)
async def limited() -> float:
    return time.monotonic()


@schedule(limit_size=2, limit_window=WINDOW, key_func=lambda group: str(group))
async def limited_by_group(group: str) -> float:
    return time.monotonic()


@schedule(hedged_request_time=0.05, retry_times=1)
async def slow_once(number: int) -> int:
    tries["slow once"] += 1
    await asyncio.sleep(60 if tries["slow once"] == 1 else 0.01)
    return number


@schedule(circuit_breaker_threshold=3, circuit_breaker_recovery=0.3, retry_times=0, default_result="fallback")
async def broken(number: int) -> str:
    if not service["up"]:
        raise ConnectionError("not available")
    return f"success {number}"


@schedule(priority=Priority.HIGH, retry_times=0)
async def critical(number: int) -> str:
    return f"critical {number}"


@schedule(priority=7, retry_times=0)
async def background(number: int) -> str:
    return f"background {number}"


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
    default_result="degraded",
)
async def adaptive(number: int) -> str:
    if number % 4 == 0:
        raise ConnectionError("failed")
    return f"OK {number}"


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


@schedule(retry_times=1, metrics_callback=log)
def doubled(number: int) -> int:
    return 2 * number


seen: list[Any] = []


@schedule(
    timeout=10,
    retry_times=3,
    retry_interval=0.01,
    exception_types=(TimeoutError, ConnectionError, OSError),
    default_result=None,
    hedged_request_time=5,
    hedged_request_max_times=1,
    limit_size=100,
    adaptive_limit=True,
    adaptive_limit_min=10,
    adaptive_limit_max=500,
    adaptive_error_threshold=0.3,
    adaptive_latency_threshold=3.0,
    circuit_breaker_threshold=10,
    circuit_breaker_recovery=30.0,
    priority=Priority.HIGH,
    metrics_callback=lambda metrics: seen.append(metrics),
    debug=True,
)
async def production(path: str, payload: dict[str, int]) -> dict[str, Any]:
    await asyncio.sleep(0.01)
    if payload["id"] == 3 and not payload.setdefault("failed", 0):
        payload["failed"] = 1
        raise ConnectionError(path)
    return {"status": "ok", "path": path}


async def limits() -> None:
    begun = sorted(await asyncio.gather(*(limited() for _ in range(6))))
    print("two in a window:", all(late - early > 0.9 * WINDOW for early, late in zip(begun, begun[2:])))
    await asyncio.gather(*map(limited_by_group, ["a", "b"] * 2))
    print("four at once, in two groups")


async def breaker() -> None:
    for number in range(5):
        try:
            print(await broken(number), end="; ")
        except RuntimeError:
            print("blocked", end="; ")
    service["up"] = True
    await asyncio.sleep(0.4)
    print(await broken(99))


async def main() -> None:
    print(await any_exception(1), await named(2), await never(3), blocking(5))
    print(await none(5), await of_arguments(5), await within(5), await not_retried(5))
    try:
        await gives_up()
    except BaseException as error:
        print(type(error).__name__, error)
    try:
        await slow()
    except asyncio.TimeoutError:
        print("timed out")
    print(await no_limit(), await slow_once(7), dict(tries))
    await limits()
    await breaker()
    print(f"{Priority.HIGH} {Priority.NORMAL} {Priority.LOW}", await asyncio.gather(background(1), critical(1), background(2)))
    results = await asyncio.gather(*map(adaptive, range(20)))
    print(results.count("degraded"), sum(result.startswith("OK") for result in results))
    print([await flaky([1] * failures) for failures in (0, 2)])
    results = await asyncio.gather(*(production("/api/users", {"id": number}) for number in range(10)))
    print(sum(result is not None for result in results), len(seen), any(metrics.retry_count for metrics in seen))


if __name__ == "__main__":
    asyncio.run(main())
    print(slow_thread(), doubled(2))
