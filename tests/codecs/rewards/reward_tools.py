"""What tests of reward codecs share: one request to a fake server through the HTTP backend, and one to a codec alone."""

from __future__ import annotations

import json
from typing import Any

from shared_tools import run

from qreward.codecs.base import WireRequest
from qreward.codecs.rewards.base import ListAnswer, ListCodec, Operation
from qreward.codecs.rewards.kinds import codec_of
from qreward.errors import InvalidResponse
from qreward.scheduler.outcome import Answer, Failure
from qreward.settings.policies import Endpoint, RewardModel
from qreward.testing import FakeEndpoint, FakeFleet
from qreward.transport.backend import HttpBackend


def call(operation: Operation, items: list[Any], **params: Any) -> WireRequest:
    return WireRequest(operation, "m", list(map(operation.item, items)), params, None)


async def ask(fake: FakeEndpoint, asked: WireRequest, reward: RewardModel | None = None, *, rooted: bool = False) -> Answer | Failure:
    """Send a call to a fake server on loopback; ``rooted`` gives the endpoint's address without ``/v1``."""
    async with FakeFleet([fake]) as fleet:
        url = fleet.urls[fake.name]
        endpoint = Endpoint(url.removesuffix("/v1") if rooted else url, name=fake.name, kind=fake.kind, proxy="", reward=reward)
        backend = HttpBackend()
        try:
            return await backend.send(endpoint, asked)
        finally:
            await backend.aclose()


def answered(fake: FakeEndpoint, asked: WireRequest, reward: RewardModel | None = None, *, rooted: bool = False) -> ListAnswer:
    outcome = run(ask(fake, asked, reward, rooted=rooted))
    assert isinstance(outcome, Answer), outcome
    value: ListAnswer = outcome.response
    return value


def failed(fake: FakeEndpoint, asked: WireRequest, reward: RewardModel | None = None) -> Failure:
    outcome = run(ask(fake, asked, reward))
    assert isinstance(outcome, Failure), outcome
    return outcome


def written(kind: str, asked: WireRequest, **settings: Any) -> dict[str, Any]:
    """The body that a kind of server is sent."""
    body: dict[str, Any] = json.loads(codec(kind, asked, **settings).encode(asked, "server-name"))
    return body


def decoded(kind: str, asked: WireRequest, document: Any, **settings: Any) -> list[Any]:
    """The items of an answer; an error is shown by its type."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    items = codec(kind, asked, **settings).decode(body, asked).items
    return [InvalidResponse if isinstance(item, InvalidResponse) else item for item in items]


def codec(kind: str, asked: WireRequest, **settings: Any) -> ListCodec:
    assert isinstance(asked.codec, Operation)
    return codec_of(kind, asked.codec, RewardModel(**settings))
