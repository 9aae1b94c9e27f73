"""The examples connect to your own endpoints if the environment names some, and otherwise to fake endpoints on this machine.

``QREWARD_CONFIG`` names a configuration file, or ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` define an endpoint. ``JUDGE_MODEL`` is the
model. Without these variables, the examples need no key and no network.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from qreward import Limits, QRewardClient
from qreward.testing import FakeEndpoint, FakeFleet

MODEL = os.environ.get("JUDGE_MODEL", "judge-7b")
OWN = ("QREWARD_CONFIG", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")


@asynccontextmanager
async def connect(*fakes: FakeEndpoint) -> AsyncIterator[QRewardClient]:
    """A client of your own endpoints, or else of these fake ones; both are closed at the end."""
    if any(os.environ.get(name) for name in OWN):
        async with QRewardClient.from_env() as client:
            yield client
        return
    async with FakeFleet(fakes) as fleet:
        endpoints = [
            endpoint.model_copy(update={"limits": Limits(max_concurrency=fake.max_concurrency)})
            for endpoint, fake in zip(fleet.endpoints, fakes, strict=True)
        ]
        async with QRewardClient(endpoints) as client:
            yield client


def conversation(question: str, reference: str, candidate: str) -> list[dict[str, str]]:
    """The messages that ask a judge whether a candidate answer says the same as the reference answer."""
    system = 'Compare the candidate answer with the reference answer. Reply with JSON: {"verdict", "score", "reason"}.'
    user = f"Question: {question}\nReference answer: {reference}\nCandidate answer: {candidate}"
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]
