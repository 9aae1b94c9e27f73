"""Several processes on one file of verdicts, some of which die in the middle of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from qreward.judge.cache import Cache

WRITER = Path(__file__).parent / "cache_writer.py"


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-W", "error", str(WRITER), str(path), name, str(count)], stdout=subprocess.PIPE, text=True)


def readable(path: Path, keys: list[bytes]) -> dict[bytes, str]:
    """What can be read of these keys; each text must be whole."""
    cache = Cache(path)
    found = asyncio.run(cache.look([(key, "m") for key in keys]))
    cache.close()
    texts = {key: heard.text for key, heard in zip(keys, found, strict=True) if heard is not None}
    assert all(text == f"{key.decode()} " * 50 for key, text in texts.items())
    return texts


@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_process_that_is_killed_while_it_writes_leaves_a_file_that_all_can_read_and_write(after: int, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with writer(path, "dead", 1_000_000) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    with writer(path, "next", 100) as process:
        process.communicate()
    assert process.returncode == 0
    readable(path, [f"dead-{number}".encode() for number in range(after * 50)])
    assert len(readable(path, [f"next-{number}".encode() for number in range(100)])) == 100
    file = sqlite3.connect(path)
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    file.close()


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    processes = [writer(path, name, 400) for name in ("a", "b", "c")]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    keys = [f"{name}-{number}".encode() for name in ("a", "b", "c") for number in range(400)]
    assert len(readable(path, keys)) == 1200
