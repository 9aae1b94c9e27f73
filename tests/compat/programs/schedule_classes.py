"""A configuration that is changed by the program, a callback, a file and the environment; the priority queue; the exporter and spans."""

import asyncio
import json
import os
import tempfile
import threading
from typing import Any

from qreward.utils import schedule
from qreward.utils.scheduler import ConfigWatcher, Priority, PriorityTaskQueue, ScheduleConfig, ScheduleMetrics, TelemetryExporter


def changed_by_the_program() -> None:
    config = ScheduleConfig(timeout=10, retry_times=3)
    config.on_change(lambda changed: print("changed:", changed.timeout == 30, changed.retry_times))
    config.update(timeout=30, retry_times=5)
    print(config.timeout == 30, config.retry_times, config.snapshot()["retry_times"])


def changed_by_a_callback() -> None:
    config = ScheduleConfig(timeout=10)
    done = threading.Event()
    calls: list[int] = []

    def dynamic() -> dict[str, Any]:
        calls.append(1)
        if len(calls) > 4:
            done.set()
        return {"timeout": 60, "retry_times": 10} if len(calls) >= 3 else {"timeout": 10 + len(calls) * 5}

    watcher = ConfigWatcher(config, source="callback", callback=dynamic, poll_interval=0.01, cooldown=0)
    watcher.start()
    done.wait(30)
    print(watcher.is_running, end=" ")
    watcher.stop()
    print(watcher.is_running, config.timeout == 60, config.retry_times)


def changed_by_a_file() -> None:
    config = ScheduleConfig(timeout=10, retry_times=3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "settings.json")
        for number, settings in enumerate([{"timeout": 45, "limit_size": 200}, {"timeout": 90, "limit_size": 500}]):
            with open(path, "w") as file:
                json.dump(settings, file)
            os.utime(path, (number + 1, number + 1))
            if number == 0:
                watcher = ConfigWatcher(config, source="file", file_path=path, poll_interval=0.5, cooldown=0)
            print(watcher.poll_once(), config.timeout == settings["timeout"], config.limit_size, config.retry_times)


def changed_by_the_environment() -> None:
    config = ScheduleConfig(timeout=10)
    os.environ["QREWARD_SCHEDULE_TIMEOUT"] = "120"
    os.environ["QREWARD_SCHEDULE_RETRY_TIMES"] = "8"
    try:
        watcher = ConfigWatcher(config, source="env", cooldown=0)
        print(watcher.poll_once(), config.timeout == 120, config.retry_times)
    finally:
        del os.environ["QREWARD_SCHEDULE_TIMEOUT"], os.environ["QREWARD_SCHEDULE_RETRY_TIMES"]


def queued() -> None:
    queue = PriorityTaskQueue(starvation_threshold=60.0)
    queue.put("low", priority=Priority.LOW)
    queue.put("normal", priority=Priority.NORMAL)
    queue.put("normal, later")
    queue.put("high", priority=Priority.HIGH)
    print(queue.queue_size, end=": ")
    while not queue.is_empty:
        print(queue.get(), end="; ")
    print(queue.get(), queue.is_empty)


exporter = TelemetryExporter(meter_name="myapp.scheduler", tracer_name="myapp.scheduler")


@schedule(retry_times=2, retry_interval=0.01, default_result="fallback", telemetry_exporter=exporter)
async def monitored(number: int) -> str:
    if number % 5 == 0:
        raise RuntimeError("failed")
    return "OK"


async def exported() -> None:
    results = await asyncio.gather(*map(monitored, range(10)))
    print(TelemetryExporter.is_available(), results.count("OK"), results.count("fallback"))
    span = exporter.start_span("custom_operation", attributes={"version": "1.0"})
    span.set_attribute("result", "success")
    metrics = ScheduleMetrics(total_calls=1, success_count=1, failure_count=0, retry_count=0, total_latency_ms=100.0, avg_latency_ms=100.0)
    exporter.end_span(span, metrics)
    print("ended")


if __name__ == "__main__":
    changed_by_the_program()
    changed_by_a_callback()
    changed_by_a_file()
    changed_by_the_environment()
    queued()
    asyncio.run(exported())
