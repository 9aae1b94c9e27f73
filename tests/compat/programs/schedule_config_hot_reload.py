"""A configuration that is changed by the program, a callback, a file and the environment."""

import json
import os
import tempfile
import threading
from typing import Any

from qreward.utils.scheduler import ConfigWatcher, ScheduleConfig


def by_the_program() -> None:
    config = ScheduleConfig(timeout=10, retry_times=3)
    config.on_change(lambda changed: print("changed:", changed.timeout == 30, changed.retry_times))
    config.update(timeout=30, retry_times=5)
    print(config.timeout == 30, config.retry_times, config.snapshot()["retry_times"])


def by_a_callback() -> None:
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
    watcher.stop()
    print(config.timeout == 60, config.retry_times)


def by_a_file() -> None:
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


def by_the_environment() -> None:
    config = ScheduleConfig(timeout=10)
    os.environ["QREWARD_SCHEDULE_TIMEOUT"] = "120"
    os.environ["QREWARD_SCHEDULE_RETRY_TIMES"] = "8"
    try:
        watcher = ConfigWatcher(config, source="env", cooldown=0)
        print(watcher.poll_once(), config.timeout == 120, config.retry_times)
    finally:
        del os.environ["QREWARD_SCHEDULE_TIMEOUT"], os.environ["QREWARD_SCHEDULE_RETRY_TIMES"]


if __name__ == "__main__":
    by_the_program()
    by_a_callback()
    by_a_file()
    by_the_environment()
