"""Our own codecs reach our own server: what the client's wire sends as openrlhf and vllm comes back as each item's own reward."""

from __future__ import annotations

from typing import Any

import pytest
from server_tools import Lengths, served
from shared_tools import each, run

from qreward import QRewardClient, Retry
from qreward.codecs.base import WireRequest
from qreward.codecs.rewards.base import splits
from qreward.codecs.rewards.kinds import CLASSIFY, SCORE
from qreward.errors import InvalidResponse
from qreward.scheduler.outcome import Answer, Failure
from qreward.settings.policies import Endpoint, RewardModel
from qreward.transport.backend import HttpBackend

TEXTS = ["a", "bb", "großer 😀 \u2028"]
LENGTHS = [float(len(text)) for text in TEXTS]
PAIRS = [("2 + 2?", "4"), ("why?", "because")]


def send(scorer: Any, items: list[Any], *, kind: Any, operation: Any = SCORE, token: str = "", given: str = "", **settings: Any) -> Any:
    """The outcome of one call, by the client's wire."""

    async def main() -> Answer | Failure:
        reward = RewardModel(**{name: settings.pop(name) for name in ("route", "template") if name in settings})
        async with served(scorer, token=token or None, **settings) as server:
            endpoint = Endpoint(f"{server.url}/v1", kind=kind, proxy="", api_key=(given or token) or None, reward=reward)
            wire = HttpBackend()
            try:
                return await wire.send(endpoint, WireRequest(operation, "rm-7b", list(map(operation.item, items)), {}, None))
            finally:
                await wire.aclose()

    return run(main())


@each(
    "settings, items, expected, prompts",
    [
        ({"kind": "openrlhf"}, TEXTS, LENGTHS, []),
        ({"kind": "vllm"}, TEXTS, LENGTHS, []),
        ({"kind": "vllm", "route": "classify"}, TEXTS, LENGTHS, []),
        # pairs: query, prompt and label for OpenRLHF, apart for the score route, else a completion and its prompt
        ({"kind": "openrlhf"}, [*PAIRS, {"prompt": "p", "response": "r", "label": "l"}], [7.0, 11.0, 2.0], ["2 + 2?", "why?", "p"]),
        ({"kind": "vllm", "route": "score"}, PAIRS, [1.0, 7.0], ["2 + 2?", "why?"]),
        ({"kind": "vllm"}, PAIRS[:1], [1.0], ["2 + 2?"]),
        ({"kind": "vllm", "operation": CLASSIFY}, ["aaa"], [{"LABEL_0": pytest.approx(0.9525741)}], []),
    ],
)
def test_items_come_to_the_scorer_and_come_back_as_rewards(settings: Any, items: Any, expected: Any, prompts: list[str]) -> None:
    scorer = Lengths()
    outcome = send(scorer, items, **settings)
    assert isinstance(outcome, Answer), outcome
    assert outcome.response.items == expected
    assert [prompt for meta in scorer.metadata if (prompt := meta.get("prompt"))] == prompts


@each("settings", [{}, {"route": "score"}])
def test_a_completion_without_a_reward_is_an_error_of_its_item_for_vllm(settings: dict[str, Any]) -> None:
    outcome = send(Lengths(), [("q", "good"), ("q", "poison")], kind="vllm", template="{prompt}{response}", **settings)
    good, bad = outcome.response.items
    assert good > 0
    assert isinstance(bad, InvalidResponse)


def test_a_list_with_a_bad_item_for_openrlhf_and_one_that_is_too_long_are_lists_that_the_client_splits() -> None:
    bad, longer = send(Lengths(), ["good", "poison"], kind="openrlhf"), send(Lengths(), TEXTS, kind="vllm", max_items=2)
    assert isinstance(bad, Failure)
    assert isinstance(longer, Failure)
    assert splits(bad, 2)
    assert splits(longer, 3)
    assert "poison was found" in str(bad.error)


@each("kind", ["openrlhf", "vllm"])
async def test_a_scorer_that_returns_one_number_for_a_list_is_never_asked_for_its_parts(kind: Any) -> None:
    """Neither the server nor the client may come down to lists of one completion, for which one number would be an answer."""
    asked: list[int] = []

    def scorer(texts: list[str]) -> list[float]:
        asked.append(len(texts))
        return [0.5]

    async with served(scorer) as server:
        endpoint = Endpoint(f"{server.url}/v1", kind=kind, proxy="", name="own")
        async with QRewardClient([endpoint], retry=Retry(attempts=2, base=0.01)) as client:
            batch = await client.batch_score(["a", "b", "c"], "rm-7b")
    assert {type(error) for error in batch.errors.values()} == {InvalidResponse}
    assert len(batch.errors) == 3
    assert "must return one reward for each completion" in str(batch.errors[0])
    assert set(asked) == {3}


def test_the_key_of_the_endpoint_is_the_token_of_the_server() -> None:
    assert isinstance(send(Lengths(), TEXTS, kind="vllm", token="tok-1"), Answer)
    refused = send(Lengths(), TEXTS, kind="vllm", token="tok-1", given="tok-2")
    assert refused.error.status_code == 401
    assert "tok-" not in str(refused.error)
