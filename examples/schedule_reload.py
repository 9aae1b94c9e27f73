"""``ConfigWatcher`` applies the settings of a file while the function is in use. A file with an invalid setting changes nothing.

Run it: ``python examples/schedule_reload.py``.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

from qreward import ConfigWatcher, schedule

RUNNING, PEAK = set[int](), [0]
FILES = ("max_concurrency = 20\nretry_times = 3", "max_concurrency = 0", "# only the settings of the decorator")


@schedule(max_concurrency=2, timeout=30)
async def judge(number: int) -> None:
    RUNNING.add(number)
    PEAK[0] = max(PEAK[0], len(RUNNING))
    await asyncio.sleep(0.01)
    RUNNING.discard(number)


async def judge_forty() -> None:
    PEAK[0] = 0
    await asyncio.gather(*map(judge, range(40)))
    print(f"at most {PEAK[0]} at once: {judge.config}")


def write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    path.with_suffix(".new").replace(path)  # the watcher never reads half a file


async def main() -> None:
    loop, checked = asyncio.get_running_loop(), asyncio.Event()

    def report(error: Exception) -> None:  # runs in the watcher's thread
        print("invalid:", str(error).partition(".toml: ")[2])
        loop.call_soon_threadsafe(checked.set)

    judge.config.on_change(lambda *_: loop.call_soon_threadsafe(checked.set))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "judge.toml"
        write(path, "max_concurrency = 5")
        with ConfigWatcher(judge, file=path, poll_interval=0.02, on_error=report):
            for text in FILES:
                await judge_forty()
                checked.clear()
                write(path, text)
                await checked.wait()
            await judge_forty()


if __name__ == "__main__":
    logging.getLogger("qreward.schedule").setLevel(logging.ERROR)  # report() prints the invalid setting
    asyncio.run(main())
