"""An exporter for all calls, and spans by hand."""

import asyncio

from qreward.utils import schedule
from qreward.utils.scheduler import ScheduleMetrics, TelemetryExporter

exporter = TelemetryExporter(meter_name="myapp.scheduler", tracer_name="myapp.scheduler")


@schedule(retry_times=2, retry_interval=0.01, default_result="fallback", telemetry_exporter=exporter)
async def monitored(number: int) -> str:
    if number % 5 == 0:
        raise RuntimeError("failed")
    return "OK"


async def main() -> None:
    results = await asyncio.gather(*map(monitored, range(10)))
    print(TelemetryExporter.is_available(), results.count("OK"), results.count("fallback"))
    span = exporter.start_span("custom_operation", attributes={"version": "1.0"})
    span.set_attribute("result", "success")
    exporter.end_span(
        span,
        ScheduleMetrics(total_calls=1, success_count=1, failure_count=0, retry_count=0, total_latency_ms=100.0, avg_latency_ms=100.0),
    )
    print("ended")


if __name__ == "__main__":
    asyncio.run(main())
