"""Merging over real HTTP, against fakes of every kind of server, with faults: each item gets its own score or its own error."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from qreward import Limits, QRewardClient, Retry, RewardModel
from qreward.errors import BadRequest, InvalidResponse, RequestError
from qreward.testing import NAN, REFUSED, FakeEndpoint, FakeFleet, Faults, Latency, Scoring
from qreward.testing.bodies import probabilities_of, score_of

MODEL = "rm-7b"
TEMPLATE = RewardModel(template="<q>{prompt}<a>{response}")
KINDS: dict[str, dict[str, Any]] = {
    "vllm": {},
    "sglang": {},
    "tei": {},
    "openrlhf": {},
    "nim": {},
    "openai": {"scoring": Scoring(reward_vectors=True)},
}


def fake(kind: Any, **settings: Any) -> FakeEndpoint:
    return FakeEndpoint(kind, kind=kind, **{**KINDS[kind], **settings})


def client_of(fleet: FakeFleet, **settings: Any) -> QRewardClient:
    """A client that makes texts of pairs where the server takes texts."""
    endpoints = [
        each if each.kind == "nim" else each.model_copy(update={"reward": TEMPLATE, "limits": settings.pop("limits", Limits())})
        for each in fleet.endpoints
    ]
    return QRewardClient(endpoints, **settings)


def rendered(pair: tuple[str, str], kind: str) -> Any:
    if kind == "nim":
        return [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return TEMPLATE.render(*pair)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"openai"}))
def test_of_many_items_the_poison_fails_and_all_others_have_their_own_score(kind: str) -> None:
    count = 150 if kind == "nim" else 600
    told: Counter[int] = Counter()
    poison = dict.fromkeys(range(37, count, 100), REFUSED) | ({13: NAN} if kind != "nim" else {})  # a score of NaN is never 0

    def pair(index: int) -> Any:
        return poison[index] if poison.get(index) == NAN else (f"question {index}", poison.get(index, f"answer {index}"))

    async def main() -> Any:
        faults = Faults(error_500=0.02, reset=0.01, error_503=0.02, seed=3)
        fleet, retry = FakeFleet([fake(kind, faults=faults, latency=Latency(base=0.002))]), Retry(attempts=12, base=0.005, cap=0.01)
        async with fleet, client_of(fleet, retry=retry) as client:
            given = (pair(index) for index in range(count))
            batch = await client.batch_score(given, MODEL, on_result=lambda result: told.update([result.index]), timeout=100)
            return batch, client.stats()[kind], client._runtime._mergers

    batch, stats, left = asyncio.run(main())
    assert told == dict.fromkeys(range(count), 1)
    assert set(batch.errors) == set(poison)
    assert {type(error) for index, error in batch.errors.items() if index != 13} == {BadRequest}
    if kind != "nim":
        assert isinstance(batch.errors[13], RequestError if kind in ("tei", "openrlhf") else InvalidResponse)
        assert stats.sent < count / 3, "merged, though each poisoned item takes its list apart"
    expected = [score_of(rendered(pair(index), kind)) for index in range(count) if index not in poison]
    found = [batch[index].value for index in range(count) if index not in poison]
    assert found == pytest.approx(expected, abs=0.0006 if kind == "nim" else 1e-9)
    assert left == {}


def test_single_scores_labels_and_rankings_are_what_the_server_says() -> None:
    async def main() -> None:
        labels = ("bad", "good")
        settings = {"scoring": Scoring(labels=labels)}
        async with FakeFleet([fake("tei", **settings)]) as fleet:
            (plain,) = fleet.endpoints
            endpoint = plain.model_copy(update={"reward": RewardModel(template="{prompt}{response}", label="good")})
            async with QRewardClient([endpoint]) as client:
                one, many = await asyncio.gather(client.score("q", "a", model=MODEL), client.batch_score([("q", "a")] * 3, MODEL))
                assert one == score_of(["good", "qa"])
                assert one.attributes == {"bad": score_of(["bad", "qa"]), "good": score_of(["good", "qa"])}
                assert many.values() == [one] * 3
                found = await client.classify("q", "a", model=MODEL)
                both = probabilities_of([score_of(["bad", "qa"]), score_of(["good", "qa"])])
                assert found == pytest.approx({"bad": both[0], "good": both[1]})
                assert (await client.batch_classify(["qa"], MODEL))[0].value == found
                documents = [f"document {number}" for number in range(100)]
                ranks = await client.rerank("q", documents, MODEL, raw_scores=True)
                assert ranks == [score_of(["q", document]) for document in documents], "in four requests, in the order that was given"
                assert await client.rerank("q", [], MODEL) == []

    asyncio.run(main())


def test_a_ranking_is_one_request_where_the_server_takes_it_whole_and_idle_slots_do_not_cut_it() -> None:
    async def main() -> None:
        async with FakeFleet([fake("vllm")]) as fleet, client_of(fleet) as client:
            first, second = await asyncio.gather(client.rerank("q", ["a"] * 700, MODEL), client.rerank("r", ["a"] * 3, MODEL))
            assert (len(first), len(second)) == (700, 3)
            assert fleet.seen("vllm").answered == 2

    asyncio.run(main())
