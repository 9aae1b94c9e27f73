"""Servers without a network, and clients over them in virtual time that may be given another configuration."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from qreward import Endpoint, Limits, QRewardClient
from qreward.results import Usage
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.outcome import Answer, Failure
from qreward.settings.client import ClientConfig
from qreward.testing.virtual_time import run_in_virtual_time

MODEL = "judge-7b"


class Said:
    usage = Usage(10, 10)

    def __init__(self, text: str) -> None:
        self._text = text

    def build(self) -> str:
        return self._text

    def text(self) -> str:
        return self._text


class Servers:
    """Answer each request after some seconds; note what came where and when, and how much at once."""

    def __init__(self, answer: Callable[[str], Any] | None = None, seconds: float = 1.0) -> None:
        self._answer = answer
        self.seconds = seconds
        self.sent: list[tuple[str, str, float]] = []
        self.live: Counter[str] = Counter()
        self.cancelled = 0

    async def send(self, endpoint: Endpoint, call: Any) -> Answer | Failure:
        self.sent.append((endpoint.base_url, call.model, asyncio.get_running_loop().time()))
        self.live[endpoint.name] += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.live[endpoint.name] -= 1
        outcome = None if self._answer is None else self._answer(endpoint.name)
        return outcome or Answer(Said(f"re: {call.inputs[0]['content']}"), 10, 10)

    async def aclose(self) -> None: ...

    def hosts(self, after: float = 0.0) -> set[str]:
        return {url.removeprefix("http://").removesuffix(".example/v1") for url, _, when in self.sent if when >= after}


def endpoint(name: str, at_once: int | None = 2, host: str = "", **settings: Any) -> Endpoint:
    limits = settings.pop("limits", None) or Limits(max_concurrency=at_once, adaptive=False)
    return Endpoint(f"http://{host or name}.example/v1", name=name, limits=limits, **settings)


def config_of(*endpoints: Endpoint, **settings: Any) -> ClientConfig:
    return ClientConfig(endpoints=endpoints, **settings)


def run(config: ClientConfig, test: Callable[[QRewardClient, Servers], Any], servers: Servers | None = None) -> None:
    """Run a test with a client over servers, in virtual time."""
    wire = servers or Servers()

    async def main() -> None:
        settings = {name: getattr(config, name) for name in ("endpoints", "routes", "retry", "hedge", "max_queued", "timeout")}
        loop = asyncio.get_running_loop()
        async with QRewardClient(**settings, wire_factory=lambda: cast("Any", wire), clock=loop.time) as client:
            await test(client, wire)
            assert sum(source.inflight for source in client._runtime.fleet.sources()) == 0
            assert sum(len(pool.queue) for source in client._runtime.fleet.sources() for pool in source.pools) == 0

    run_in_virtual_time(main())


def begin(client: QRewardClient, count: int, model: str = MODEL, **settings: Any) -> asyncio.Future[Any]:
    chats = [[{"role": "user", "content": str(number)}] for number in range(count)]
    return asyncio.ensure_future(client.batch_chat_completion(chats, model, **settings))


def ask(client: QRewardClient, model: str = MODEL, **settings: Any) -> asyncio.Future[Any]:
    return asyncio.ensure_future(client.chat_completion([{"role": "user", "content": "x"}], model, **settings))


def source_of(client: QRewardClient, name: str) -> Source:
    return client._runtime.fleet.source(name)
