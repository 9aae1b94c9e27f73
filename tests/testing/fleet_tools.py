"""What tests of the fake fleet share: messages, one request, and a loop to run in."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from qreward.testing import FakeEndpoint, FakeFleet


class Answer(NamedTuple):
    """An HTTP answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """Sends to one fleet with one aiohttp session."""

    def __init__(self, fleet: FakeFleet, session: aiohttp.ClientSession) -> None:
        self.fleet = fleet
        self._session = session

    async def post(self, name: str, path: str, body: Any, **headers: str) -> Answer:
        data = {"data": io.BytesIO(body)} if isinstance(body, bytes) else {"json": body}
        async with self._session.post(self.fleet.urls[name] + path, headers=headers, **data) as response:
            return Answer(response.status, response.headers, await response.read())

    async def chat(self, name: str, text: str = "hi", **params: Any) -> Answer:
        return await self.post(name, "/chat/completions", {"model": "m", "messages": user(text), **params})

    async def get(self, name: str, path: str, **headers: str) -> Answer:
        async with self._session.get(self.fleet.urls[name].removesuffix("/v1") + path, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@asynccontextmanager
async def serving(*endpoints: FakeEndpoint, process: bool = False) -> AsyncIterator[Client]:
    async with FakeFleet(endpoints, process=process) as fleet, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Client(fleet, session)
