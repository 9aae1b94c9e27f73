"""What tests of the reward server share: a server of uvicorn on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from shared_tools import Lengths

from qreward.server import RewardServer

__all__ = ["Lengths", "Served", "served"]


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
