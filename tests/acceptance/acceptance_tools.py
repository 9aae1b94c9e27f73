"""The whole client over real sockets: endpoints of a fake fleet with limits, a wire that counts, and what must be gone at the end."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_tools import serving as serving  # noqa: PLC0414 - for the tests of this folder

from qreward import Endpoint, Limits, QRewardClient, Timeouts
from qreward.testing import FakeFleet, echo_of
from qreward.transport.backend import HttpBackend

MODEL = "judge-7b"
FDS = Path("/proc/self/fd")
needs_proc = pytest.mark.skipif(not FDS.exists(), reason="counts what is open in /proc")


class CountingWire(HttpBackend):
    """The real wire; counts how many requests are with each endpoint at once, on the client's side."""

    live: Counter[str]
    peak: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = Counter(), Counter()

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        name = endpoint.name
        self.live[name] += 1
        self.peak[name] = max(self.peak[name], self.live[name])
        try:
            return await super().send(endpoint, call)
        finally:
            self.live[name] -= 1


def prompt(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question {number}"}]


def prompts(count: int) -> list[list[dict[str, str]]]:
    return [prompt(number) for number in range(count)]


def echoes(count: int) -> list[str]:
    """What the answers to ``prompts`` must be."""
    return [echo_of(prompt(number)) for number in range(count)]


def endpoints(fleet: FakeFleet, limits: dict[str, int], attempt: float | None = None, **settings: Any) -> list[Endpoint]:
    """The endpoints of a fleet, each with its own most requests at once, and seconds for an attempt."""
    return [
        Endpoint(url, name=name, proxy="", limits=Limits(max_concurrency=limits.get(name)), timeouts=Timeouts(attempt=attempt), **settings)
        for name, url in fleet.urls.items()
    ]


def client_of(fleet: FakeFleet, limits: dict[str, int], attempt: float | None = None, **settings: Any) -> QRewardClient:
    return QRewardClient(endpoints(fleet, limits, attempt), **settings)


async def until(happens: Callable[[], object]) -> None:
    """Wait for what comes soon: a peer hears of a closed connection, a loop drops a transport."""
    async with asyncio.timeout(30):
        while not happens():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.005)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return sum(1 for _ in FDS.iterdir())


def in_flight(client: QRewardClient) -> int:
    return sum(source.inflight for source in client._runtime.fleet.sources())
