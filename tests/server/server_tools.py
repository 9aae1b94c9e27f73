"""What tests of the reward server share: scorers that note what they were given, and a server of uvicorn on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from qreward.server import RewardServer


class Lengths:
    """An async scorer: the reward is the length of the completion. A poisonous one spoils its whole batch.

    Attributes:
        batches: the completions of each call.
        metadata: of each completion.
        release: set to let the batches go, if it was given.
    """

    def __init__(self, seconds: float = 0.0, *, held: bool = False) -> None:
        self.seconds = seconds
        self.batches: list[list[str]] = []
        self.metadata: list[dict[str, Any]] = []
        self.release = asyncio.Event() if held else None
        self.running = self.peak = 0

    async def __call__(self, completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        self.batches.append(completions)
        self.metadata += metadata
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            if self.release is not None:
                await self.release.wait()
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if any("poison" in completion for completion in completions):
            raise ValueError("poison was found")
        return [float(len(completion)) for completion in completions]

    @property
    def seen(self) -> list[str]:
        return [completion for batch in self.batches for completion in batch]


class Served:
    """A running server, and a client for it."""

    def __init__(self, server: RewardServer, client: httpx.AsyncClient) -> None:
        self.service = server.service
        self.url = server.url
        self.client = client

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)


@asynccontextmanager
async def served(scorer: Any, **settings: Any) -> AsyncIterator[Served]:
    """A server on a free port of loopback, in this loop; its end breaks off what a test has left behind."""
    async with RewardServer(scorer, port=0, **{"drain_timeout": 0.5, **settings}) as server:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False, limits=limits) as client:
            yield Served(server, client)


async def until(condition: Any) -> None:
    """Wait until something has become true."""
    while not condition():  # noqa: ASYNC110 - what it waits for tells nobody
        await asyncio.sleep(0.005)
