"""Prefix affinity over real sockets: a fleet whose fake model servers cache prefixes computes each one about once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint
from fakes.model_server import MODELS

from qreward import BatchResult, Limits, QRewardClient
from qreward.testing import FakeFleet, Latency

RUBRIC = "Judge the answer by its correctness alone. " * 20
QUESTIONS, ANSWERS = 24, 8
FAST = MODELS["8B"].model_copy(update={"time_scale": 0.02})


def fleet() -> FakeFleet:
    endpoints = [ModelEndpoint(name, served=FAST, responder="judge", latency=Latency(tokens=10)) for name in "abcd"]
    return FakeFleet(endpoints)


def items() -> list[tuple[str, str]]:
    pairs = [(f"Question {q}: {'how much is it? ' * 120}", f"answer {a} of {q} " * 4) for q in range(QUESTIONS) for a in range(ANSWERS)]
    random.Random(1).shuffle(pairs)
    return pairs


def conversation(pair: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": "system", "content": RUBRIC}, {"role": "user", "content": pair[0]}, {"role": "user", "content": pair[1]}]


def client_of(running: FakeFleet, **settings: Any) -> QRewardClient:
    """A client that has four requests in flight at each endpoint, so that most of them wait."""
    few = {"limits": Limits(max_concurrency=4, adaptive=False)}
    return QRewardClient([endpoint.model_copy(update=few) for endpoint in running.endpoints], hedge=None, **settings)


def computed(running: FakeFleet) -> int:
    """Prompt tokens that the servers computed."""
    return sum(running.seen(name).computed for name in "abcd")


async def judged(group: Any = None, **settings: Any) -> tuple[BatchResult[Any], int, dict[str, tuple[int, int]]]:
    with fleet() as running:
        async with client_of(running, **settings) as client:
            batch = await client.batch_chat_completion(map(conversation, items()), model="judge", group=group)
            batch.raise_for_errors()
            stats = {name: (each.predicted_tokens, each.cached_tokens) for name, each in client.stats().items()}
        return batch, computed(running), stats


async def test_each_question_is_computed_about_once_whether_its_group_is_named_or_found() -> None:
    _, plainly, _ = await judged(prefix_affinity=None)
    for group in (None, lambda messages: ("rubric", messages[1]["content"])):
        batch, with_affinity, stats = await judged(group)
        assert with_affinity < 0.6 * plainly, (with_affinity, plainly)
        predicted, cached = (sum(counts) for counts in zip(*stats.values(), strict=True))
        assert predicted == pytest.approx(cached, rel=0.25)
        assert "prefix cache: " in str(batch.stats)
