"""Legacy completions and moderations: merged into one request, given out as openai's types."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai.types import CompletionChoice, Moderation

from qreward import BadRequest, Endpoint, Limits, QRewardClient
from qreward.codecs.base import WireRequest
from qreward.codecs.rewards.kinds import COMPLETE, bound
from qreward.testing import FakeEndpoint, FakeFleet, Latency

FAKE = FakeEndpoint("api", models=["*"], kind="openai", max_concurrency=2, latency=Latency(base=0.02))


def with_client(test: Any) -> Any:
    async def run() -> Any:
        async with FakeFleet([FAKE]) as fleet:
            narrow = [each.model_copy(update={"limits": Limits(max_concurrency=2)}) for each in fleet.endpoints]
            async with QRewardClient(narrow) as client:
                return await test(client, fleet)

    return asyncio.run(run())


def test_a_completion_is_the_choices_of_its_prompt() -> None:
    async def test(client: QRewardClient, _: FakeFleet) -> list[CompletionChoice]:
        return await client.text_completion("6 x 7 =", model="davinci", n=2, max_tokens=8)

    choices = with_client(test)
    assert [type(choice) for choice in choices] == [CompletionChoice, CompletionChoice]
    assert [choice.index for choice in choices] == [0, 1]
    assert all(choice.text for choice in choices)


def test_completions_that_wait_share_requests_and_each_gets_its_own_choices() -> None:
    async def test(client: QRewardClient, fleet: FakeFleet) -> tuple[list[str], Any, int]:
        alone = [(await client.text_completion(f"prompt {number}", model="davinci"))[0].text for number in range(3)]
        batch = await client.batch_text_completion([f"prompt {number % 3}" for number in range(60)], model="davinci")
        return alone, batch, fleet.seen("api").requests

    alone, batch, requests = with_client(test)
    assert [result.value[0].text for result in batch] == [alone[number % 3] for number in range(60)]
    assert batch.texts() == [alone[number % 3] for number in range(60)]
    assert requests < 3 + 30, "lists"
    assert batch[0].usage is not None


def test_a_single_text_is_sent_as_it_is_and_several_prompts_as_a_list() -> None:
    for prompts in ([["hi"], "hi"], [[[1, 2]], [[1, 2]]], [["a", "b"], ["a", "b"]], [[[1], [2]], [[1], [2]]]):
        call = bound(WireRequest(COMPLETE, "davinci", prompts[0], {"n": 2}, None), Endpoint("http://gpu-0/v1"))
        assert json.loads(call.codec.encode(call, "davinci"))["prompt"] == prompts[1]


def test_moderations_tell_of_each_input() -> None:
    async def test(client: QRewardClient, _: FakeFleet) -> tuple[Moderation, Any]:
        one = await client.moderation("kind words", model="omni-moderation")
        return one, await client.batch_moderation([f"text {number}" for number in range(20)], model="omni-moderation")

    one, batch = with_client(test)
    assert isinstance(one, Moderation)
    assert isinstance(one.flagged, bool)
    assert [type(value) for value in batch.values()] == [Moderation] * 20


def test_what_is_no_prompt_is_refused_before_anything_is_sent() -> None:
    async def test(client: QRewardClient, fleet: FakeFleet) -> int:
        with pytest.raises(BadRequest):
            await client.text_completion({"prompt": 1}, model="davinci")  # type: ignore[dict-item]
        with pytest.raises(BadRequest, match="n must be"):
            await client.text_completion("x", model="davinci", n=0)
        return fleet.seen("api").requests

    assert with_client(test) == 0
