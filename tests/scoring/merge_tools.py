"""A backend that answers lists without a network, and clients over it on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from leftovers import leftovers  # noqa: F401 - for the tests

from qreward import Endpoint, Limits, QRewardClient
from qreward.codecs.rewards.base import ListAnswer, RewardScore
from qreward.codecs.rewards.kinds import bound
from qreward.errors import BadRequest, InvalidResponse, RateLimited, ServerError
from qreward.results import Usage
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.testing.virtual_time import VirtualTimeLoop

MODEL = "rm-7b"
Script = Callable[[str, list[Any]], Awaitable[Any]]
"""From endpoint name and items to an outcome of the core, or None for a good answer."""


class ListBackend:
    """Notes what was sent where and when; the value of an item is the number of its text, as ``"x 7"`` has 7."""

    def __init__(self, script: Script | None = None, seconds: float = 1.0) -> None:
        self._script = script
        self._seconds = seconds
        self.sent: list[tuple[str, float, list[Any]]] = []
        self.cancelled: list[list[Any]] = []
        self.calls: list[Any] = []

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        items = list(call.inputs)
        self.calls.append(call)
        self.sent.append((endpoint.name, round(asyncio.get_running_loop().time(), 3), items))
        try:
            outcome = await self._script(endpoint.name, items) if self._script else await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled.append(items)
            raise
        return outcome if outcome is not None else good(items)

    async def aclose(self) -> None:
        """Nothing is open."""

    @property
    def sizes(self) -> list[int]:
        return [len(items) for _, _, items in self.sent]

    @property
    def lists(self) -> list[list[Any]]:
        return [items for _, _, items in self.sent]


class EncodingBackend(ListBackend):
    """As above, but lists are written first, as a real backend would."""

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        try:
            asked = bound(call, endpoint)
            asked.codec.encode(asked, call.model)
        except BadRequest as error:
            self.sent.append((endpoint.name, 0.0, list(call.inputs)))
            return Failure(FailureKind.UNSENDABLE, error)
        return await super().send(endpoint, call)


def in_turn(*outcomes: Any, seconds: float = 0.1) -> Script:
    """One outcome after the other, by the order of the lists; the last one again and again."""
    seen = 0

    async def work(_name: str, _items: list[Any]) -> Any:
        nonlocal seen
        await asyncio.sleep(seconds)
        seen += 1
        return outcomes[min(seen, len(outcomes)) - 1]

    return work


def flat(lists: list[list[Any]]) -> list[Any]:
    """All items, in the order in which they were sent."""
    return [item for items in lists for item in items]


def value_of(item: Any) -> float:
    return float(str(item).split()[-1])


def good(items: list[Any], missing: frozenset[Any] = frozenset()) -> Answer:
    values = [InvalidResponse("it has none") if item in missing else RewardScore(value_of(item)) for item in items]
    return Answer(ListAnswer(values, Usage(10 * len(items), None, 10 * len(items)), None, [1.0] * len(items)), 10 * len(items), None)


def refused(status: int = 400) -> Failure:
    kind = FailureKind.TRANSIENT if status == 424 else FailureKind.REFUSED
    error = (ServerError if status == 424 else BadRequest)(f"the server answered {status}", status_code=status)
    return Failure(kind, error)


def overloaded(after: float | None = None) -> Failure:
    return Failure(FailureKind.OVERLOADED, RateLimited("too busy", status_code=429), retry_after=after)


def broken(status: int = 500) -> Failure:
    return Failure(FailureKind.TRANSIENT, ServerError(f"the server answered {status}", status_code=status))


def texts(count: int, start: int = 0) -> list[str]:
    return [f"x {number}" for number in range(start, start + count)]


def endpoint(name: str = "a", slots: int | None = 1, kind: Any = "vllm", **settings: Any) -> Endpoint:
    limits = settings.pop("limits", None) or Limits(max_concurrency=slots, adaptive=False)
    return Endpoint(f"http://{name}.example/v1", name=name, kind=kind, limits=limits, **settings)


def client_of(backend: Any, *endpoints: Endpoint, **settings: Any) -> QRewardClient:
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        settings["clock"] = loop.time
    return QRewardClient(endpoints or [endpoint()], backend_factory=lambda: backend, **settings)


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)
