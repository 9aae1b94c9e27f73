"""A wire without a network, clients on virtual time, and a count of everything an engine may leave behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from leftovers import leftovers

from qreward import Endpoint, Limits, QRewardClient
from qreward.errors import ServerError
from qreward.results import Usage
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.testing.virtual_time import VirtualTimeLoop, run_in_virtual_time

MODEL = "judge-7b"
Script = Callable[[str, str], Awaitable[Any]]
"""From endpoint name and prompt to an outcome of the core, or to anything else, which then is the answer's text."""


class Said:
    """An answer of the fake wire."""

    usage: Usage | None = None

    def __init__(self, words: Any) -> None:
        self._words = words

    def build(self) -> Any:
        return self._words

    def text(self) -> str:
        return str(self._words)


class FakeWire:
    """Answers by a script; notes what was sent where and when, how much at once, and what was cancelled."""

    def __init__(self, script: Script | None = None, seconds: float = 1.0) -> None:
        self._script = script
        self._seconds = seconds
        self.sent: list[tuple[str, str, float]] = []
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.closed = 0

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        name, prompt = endpoint.name, prompt_of(call)
        self.sent.append((name, prompt, asyncio.get_running_loop().time()))
        self.live[name] += 1
        self.peak[name] = max(self.peak[name], self.live[name])
        try:
            outcome = await self._outcome(name, prompt)
        except asyncio.CancelledError:
            self.cancelled.append(prompt)
            raise
        finally:
            self.live[name] -= 1
        return outcome if isinstance(outcome, Answer | Failure) else Answer(Said(outcome))

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def prompts(self) -> list[str]:
        return [prompt for _, prompt, _ in self.sent]

    async def _outcome(self, name: str, prompt: str) -> Any:
        if self._script is not None:
            return await self._script(name, prompt)
        await asyncio.sleep(self._seconds)
        return f"re: {prompt}"


def prompt_of(call: Any) -> str:
    return str(call.inputs[0]["content"])


def chat(prompt: object) -> list[dict[str, str]]:
    return [{"role": "user", "content": str(prompt)}]


def chats(count: int) -> list[list[dict[str, str]]]:
    return [chat(number) for number in range(count)]


async def ask(client: QRewardClient, prompt: object, **settings: Any) -> Any:
    """A single call; what it returns is what the fake wire said."""
    return await client.chat_completion(chat(prompt), MODEL, **settings)


def broken(name: str = "a") -> Failure:
    return Failure(FailureKind.TRANSIENT, ServerError(f"endpoint {name!r} answered 500", endpoint=name, status_code=500))


def endpoints(limits: dict[str, int], **settings: Any) -> list[Endpoint]:
    """Endpoints by name and most requests at once."""
    return [
        Endpoint(f"http://{name}.example/v1", name=name, limits=Limits(max_concurrency=limit, adaptive=False), **settings)
        for name, limit in limits.items()
    ]


class CheckedClient(QRewardClient):
    """At the end of its ``async with`` nothing may be under way or taken."""

    async def __aexit__(self, kind: object = None, *rest: object) -> None:
        left = {} if kind else leftovers(self)
        await super().__aexit__(kind, *rest)
        assert left == {}


def client_of(wire: Any, limits: dict[str, int] | Iterable[Endpoint] | None = None, **settings: Any) -> QRewardClient:
    """A client over a fake wire, on the running loop's time if that is virtual."""
    fleet = endpoints(limits or {"a": 4}) if limits is None or isinstance(limits, dict) else limits
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if isinstance(loop, VirtualTimeLoop):
        settings["clock"] = loop.time
    return CheckedClient(fleet, backend_factory=wire if isinstance(wire, type) else lambda: wire, **settings)


def on_virtual_time(test: Callable[[], Any]) -> Any:
    """Run a test's coroutine; a loop on virtual time sees that it leaves nothing behind."""
    return run_in_virtual_time(test())


def now() -> float:
    """Seconds of virtual time, without the loop's own turns."""
    return round(asyncio.get_running_loop().time(), 3)
