"""Reward servers as processes of ``qreward serve``, which are killed, drained and started again on their port; and items for them."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import httpx

from qreward import Endpoint, RewardModel

MODEL = "sums"
TEMPLATE = RewardModel(template="<user>{prompt}<assistant>{response}")
PAGE = os.sysconf("SC_PAGE_SIZE")
PROGRAM = "import sys; from qreward.cli import main; sys.exit(main())"


def pair(number: int) -> tuple[str, str]:
    """An item whose reward is minus its number, so that nobody else's can be taken for it; every hundredth has no answer."""
    first, second = number % 977, number % 1013
    if is_poison(number):
        return f"{first} + {second} = ?", f"item {number} says nothing"
    return f"{first} + {second} = ?", f"The answer is {first + second + number}."


def is_poison(number: int) -> bool:
    return number % 100 == 37


def resident(pid: int | str = "self") -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


class RewardProcess:
    """``qreward serve sum_scorer:score``.

    Args:
        seconds: that the scorer takes for a batch.
        settings: of the command line.
    """

    def __init__(self, seconds: float, **settings: int) -> None:
        self._environment = {**os.environ, "SUM_SECONDS": str(seconds)}
        self._settings = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self._port = free_port()
        self._process: Process | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def endpoint(self, kind: Any, **settings: Any) -> Endpoint:
        return Endpoint(f"{self.url}/v1", kind=kind, reward=TEMPLATE, proxy="", **settings)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start, and wait until it serves. What it says goes into a file, for it must not count as this process's memory."""
        command = [sys.executable, "-W", "error", "-c", PROGRAM, "serve", "sum_scorer:score", "--port", str(self._port), *self._settings]
        with tempfile.NamedTemporaryFile(delete=False) as self._said:
            self._process = await asyncio.create_subprocess_exec(
                *command, cwd=Path(__file__).parent, env=self._environment, stderr=self._said
            )
        while f"is served at {self.url};" not in self._words():
            assert self._process.returncode is None, self._words()
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._ended()

    async def drain(self) -> tuple[int, str]:
        """SIGTERM; the exit code, and what it said since it served."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self._ended()

    async def _ended(self) -> tuple[int, str]:
        assert self._process is not None
        code, said = await self._process.wait(), self._words()
        self._forget()
        return code, said.partition("\n")[2]

    def _forget(self) -> None:
        Path(self._said.name).unlink()

    def _words(self) -> str:
        return Path(self._said.name).read_text(encoding="utf-8")

    async def metrics(self) -> dict[str, float]:
        """What it counts, by name and labels."""
        async with httpx.AsyncClient(trust_env=False) as client:
            lines = (await client.get(f"{self.url}/metrics")).text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def statuses(metrics: dict[str, float]) -> dict[int, int]:
    """Status -> answers of all routes."""
    found: dict[int, int] = {}
    for name, count in metrics.items():
        if match := re.match(r'qreward_server_requests_total\{.*status="(\d+)"', name):
            found[int(match[1])] = found.get(int(match[1]), 0) + int(count)
    return found


def free_port() -> int:
    """A port that is free and stays so while its server is away: none of those that are given to outgoing connections."""
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(10_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
