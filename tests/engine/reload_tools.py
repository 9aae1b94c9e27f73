"""Servers without a network, and clients over them in virtual time that may be given another configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import engine_tools
from engine_tools import MODEL, FakeWire, Said, chats, client_of

from qreward import Endpoint, Limits, QRewardClient
from qreward.results import Usage
from qreward.scheduler.outcome import Answer
from qreward.scheduler.source import Source
from qreward.settings.client import ClientConfig


class Servers(FakeWire):
    """Answer each request after some seconds; note at which host each request came."""

    def __init__(self, answer: Callable[[str], Any] = lambda _: None, seconds: float = 1.0) -> None:
        super().__init__(self._script_of)
        self.seconds = seconds
        self._answer = answer
        self._came: list[tuple[str, float]] = []

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        self._came.append((endpoint.base_url.removeprefix("http://").removesuffix(".example/v1"), asyncio.get_running_loop().time()))
        return await super().send(endpoint, call)

    async def _script_of(self, name: str, prompt: str) -> Any:
        await asyncio.sleep(self.seconds)
        said = Said(f"re: {prompt}")
        said.usage = Usage(10, 10)
        return self._answer(name) or Answer(said, 10, 10)

    def hosts(self, after: float = 0.0) -> set[str]:
        """The hosts of the requests that came so many seconds after the first one, or later."""
        return {host for host, when in self._came if when >= self._came[0][1] + after}


def endpoint(name: str, at_once: int | None = 2, host: str = "", **settings: Any) -> Endpoint:
    limits = settings.pop("limits", None) or Limits(max_concurrency=at_once, adaptive=False)
    return Endpoint(f"http://{host or name}.example/v1", name=name, limits=limits, **settings)


def config_of(*endpoints: Endpoint, **settings: Any) -> ClientConfig:
    return ClientConfig(endpoints=endpoints, **settings)


@asynccontextmanager
async def over(config: ClientConfig, servers: Servers | None = None) -> AsyncIterator[tuple[QRewardClient, Servers]]:
    """A client over servers, which must leave nothing behind."""
    wire = servers or Servers()
    settings = {name: getattr(config, name) for name in ("routes", "retry", "hedge", "max_queued", "timeout")}
    async with client_of(wire, config.endpoints, **settings) as client:
        yield client, wire


def begin(client: QRewardClient, count: int, model: str = MODEL, **settings: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(client.batch_chat_completion(chats(count), model, **settings))


def ask(client: QRewardClient, model: str = MODEL) -> asyncio.Future[Any]:
    return asyncio.ensure_future(client.chat_completion(engine_tools.chat("x"), model))


def source_of(client: QRewardClient, name: str) -> Source:
    return client._runtime.fleet.source(name)
