"""Settings that follow a file while the function is in use: what is right is taken over whole, what is wrong changes nothing."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

from qreward import ConfigWatcher, schedule

RUNNING, MOST = set[int](), [0]


@schedule(max_concurrency=2, timeout=30)
async def judge(number: int) -> int:
    RUNNING.add(number)
    MOST[0] = max(MOST[0], len(RUNNING))
    await asyncio.sleep(0.01)
    RUNNING.discard(number)
    return number


async def bulk() -> None:
    MOST[0] = 0
    await asyncio.gather(*map(judge, range(40)))
    print(f"at most {MOST[0]} at once: {judge.config}")


def write(path: Path, text: str) -> None:
    """Replace the file, so that nobody sees half of it."""
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    path.with_suffix(".new").replace(path)


async def main() -> None:
    loop, seen = asyncio.get_running_loop(), asyncio.Event()

    def refuse(error: Exception) -> None:  # in the watcher's thread, like all that follows from a look
        print("refused:", str(error).partition(".toml: ")[2])
        loop.call_soon_threadsafe(seen.set)

    judge.config.on_change(lambda *_: loop.call_soon_threadsafe(seen.set))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "judge.toml"
        write(path, "max_concurrency = 5")
        with ConfigWatcher(judge, file=path, poll_interval=0.02, on_error=refuse):
            await bulk()
            for text in ("max_concurrency = 20\nretry_times = 3", "max_concurrency = 0", "# only what the code says"):
                seen.clear()
                write(path, text)
                await seen.wait()
                await bulk()


if __name__ == "__main__":
    logging.getLogger("qreward.schedule").setLevel(logging.ERROR)  # what is refused is printed already
    asyncio.run(main())
