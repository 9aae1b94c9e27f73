"""Reward servers as processes of ``qreward serve``, which are killed, drained and started again on their port; and items for them."""

from __future__ import annotations

import asyncio
import os
import random
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
PROGRAM = "import sys; from qreward.cli import main; sys.exit(main())"


def pair(number: int) -> tuple[str, str]:
    """An item whose reward is minus its number, so that nobody else's can be taken for it; every hundredth has no answer."""
    first, second = number % 977, number % 1013
    if is_poison(number):
        return f"{first} + {second} = ?", f"item {number} says nothing"
    return f"{first} + {second} = ?", f"The answer is {first + second + number}."


def is_poison(number: int) -> bool:
    return number % 100 == 37


class RewardProcess:
    """``qreward serve sum_scorer:score``, whose scorer takes so many seconds for a batch."""

    def __init__(self, seconds: float) -> None:
        self._environment = {**os.environ, "SUM_SECONDS": str(seconds)}
        self._port = free_port()
        self._process: Process | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def endpoint(self, kind: Any, **settings: Any) -> Endpoint:
        return Endpoint(f"{self.url}/v1", kind=kind, reward=TEMPLATE, proxy="", **settings)

    async def start(self) -> None:
        """Start, and wait until it serves. What it says goes into a file, for it must not count as this process's memory."""
        command = [sys.executable, "-W", "error", "-c", PROGRAM, "serve", "sum_scorer:score", "--port", str(self._port)]
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

    async def drain(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self._ended()

    async def _ended(self) -> int:
        assert self._process is not None
        code = await self._process.wait()
        self._forget()
        return code

    def _forget(self) -> None:
        Path(self._said.name).unlink()

    def _words(self) -> str:
        return Path(self._said.name).read_text(encoding="utf-8")

    async def metrics(self) -> dict[str, float]:
        """What it counts, by name and labels."""
        async with httpx.AsyncClient(trust_env=False) as client:
            lines = (await client.get(f"{self.url}/metrics")).text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def free_port() -> int:
    """A port that is free and stays so while its server is away: none of those that are given to outgoing connections."""
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(10_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
