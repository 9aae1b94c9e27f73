"""Everything at once, functions of several priorities, and hedges with a breaker."""

import asyncio
from typing import Any

from qreward.utils import schedule
from qreward.utils.scheduler import Priority, ScheduleConfig, ScheduleMetrics, TelemetryExporter

log: list[Any] = []


@schedule(
    timeout=10,
    retry_times=3,
    retry_interval=0.01,
    exception_types=(TimeoutError, ConnectionError, OSError),
    default_result=None,
    limit_size=100,
    adaptive_limit=True,
    adaptive_limit_min=10,
    adaptive_limit_max=500,
    adaptive_error_threshold=0.3,
    adaptive_latency_threshold=3.0,
    circuit_breaker_threshold=10,
    circuit_breaker_recovery=30.0,
    priority=Priority.HIGH,
    metrics_callback=lambda metrics: log.append(metrics),
    debug=True,
)
async def production(path: str, payload: dict[str, int]) -> dict[str, Any]:
    await asyncio.sleep(0.01)
    if payload["id"] == 3 and not payload.setdefault("failed", 0):
        payload["failed"] = 1
        raise ConnectionError(path)
    return {"status": "ok", "path": path}


@schedule(retry_times=1, retry_interval=0.01, limit_size=50, priority=Priority.HIGH, default_result="critical_fallback")
async def critical(number: int) -> str:
    return f"critical-{number}"


@schedule(retry_times=3, retry_interval=0.01, limit_size=200, priority=Priority.LOW, default_result="batch_fallback")
async def batch(number: int) -> str:
    if number == 2:
        raise RuntimeError("batch error")
    return f"batch-{number}"


@schedule(
    hedged_request_time=2.0,
    hedged_request_max_times=1,
    circuit_breaker_threshold=5,
    circuit_breaker_recovery=10.0,
    retry_times=2,
    retry_interval=0.01,
    default_result="hedged_fallback",
)
async def hedged(number: int) -> str:
    await asyncio.sleep(0.01)
    return f"hedged-{number}"


async def main() -> None:
    results = await asyncio.gather(*(production("/api/users", {"id": number}) for number in range(10)))
    print(sum(result is not None for result in results), len(log), any(metrics.retry_count for metrics in log))
    print(await asyncio.gather(critical(0), batch(1), batch(2)))
    print([await hedged(number) for number in range(3)])


if __name__ == "__main__":
    asyncio.run(main())
    print(ScheduleConfig.__name__.endswith("ScheduleConfig"), ScheduleMetrics is not None, TelemetryExporter.is_available())
