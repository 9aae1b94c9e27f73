"""RewardBuffer in the place of MolGenDocking's, with only the import changed: an app, an actor, models of its own, typed endpoints."""

from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field

from qreward import RewardBuffer
from qreward.batching.reward_buffer import BatchAnswer, SingletonAnswer
from qreward.errors import BadRequest


class Docking(BaseModel):
    smiles: list[str] = []
    scores: list[float] = []


class Shown(BaseModel):
    docking: Docking | None = None
    reaction: str | None = None


class Output(BaseModel):
    rewards: list[float]
    parsed_answers: list[str]
    verifier_metadatas: list[Shown]


class Query(BaseModel):
    query: list[str]
    metadata: list[dict[str, Any]]
    prompts: list[str] | None = None


class ShownByServer(Shown):
    parsed_answer: str = ""


class Response(BaseModel):
    reward: float
    error: str | None = None
    meta: ShownByServer = Field(default_factory=ShownByServer)
    next_turn_feedback: str | None = None


class BatchResponse(BaseModel):
    rewards: list[float]
    error: str | None = None
    metas: list[ShownByServer] = []
    next_turn_feedback: str | None = None


class Reference:
    """What an actor's method returns: awaitable, and nothing else."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Actor:
    """An actor whose ``get_score`` takes its arguments by name only. A completion without an answer spoils the whole list."""

    def __init__(self) -> None:
        self.get_score = SimpleNamespace(remote=self._score)
        self.lists: list[list[str]] = []
        self.metadata: list[dict[str, Any]] = []

    def _score(self, *, completions: list[str], metadata: list[dict[str, Any]]) -> Reference:
        self.lists.append(completions)
        self.metadata += metadata
        if "poison" in completions:
            return Reference(ValueError("no molecule"))
        return Reference(
            Output(
                rewards=[float("nan") if text == "nan" else float(len(text)) for text in completions],
                parsed_answers=[text.upper() for text in completions],
                verifier_metadatas=[Shown(docking=Docking(smiles=[text], scores=[0.5])) for text in completions],
            )
        )


def app_of(actor: Any) -> Any:
    return SimpleNamespace(state=SimpleNamespace(reward_model=actor))


async def test_an_app_is_given_as_in_the_original_and_singleton_is_its_mode() -> None:
    actor = Actor()
    buffer = RewardBuffer(app_of(actor), buffer_time=0.01, max_batch_size=2**16)
    assert buffer.server_mode == "singleton"
    queries = [Query(query=[text], metadata=[{"target": at}], prompts=["p"]) for at, text in enumerate(["a", "bb"])]
    first, second = await asyncio.gather(*map(buffer.add_query, queries))
    assert actor.lists == [["a", "bb"]], "one call for both"
    assert actor.metadata == [{"target": 0}, {"target": 1}], "nothing is added to them"
    assert isinstance(first, SingletonAnswer)
    assert isinstance(second, SingletonAnswer)
    assert (first.reward, second.reward, first.error) == (1.0, 2.0, None)
    assert (first.meta.parsed_answer, first.meta.docking.smiles, first.meta.reaction) == ("A", ["a"], None)
    first.next_turn_feedback = "try again"
    first.meta.parsed_answer = "B"
    assert first.model_dump() == {
        "reward": 1.0,
        "error": None,
        "meta": {"docking": {"smiles": ["a"], "scores": [0.5]}, "reaction": None, "parsed_answer": "B"},
        "next_turn_feedback": "try again",
    }
    assert pickle.loads(pickle.dumps(first)) == first
    with pytest.raises(BadRequest, match="singleton"):
        await buffer.add_query(Query(query=["a", "b"], metadata=[{}, {}]))
    await buffer.close()


async def test_an_app_may_get_its_actor_after_the_buffer_and_another_one_later() -> None:
    app = FastAPI()
    buffer = RewardBuffer(app, 0.0, 8, "batch")
    query = Query(query=["a", "bb"], metadata=[{}, {}])
    unset: Any = await buffer.add_query(query)
    assert unset.rewards == [None, None]
    assert "reward_model" in (unset.error or "")
    for _ in range(2):
        app.state.reward_model = actor = Actor()
        answer = await buffer.add_query(query)
        assert isinstance(answer, BatchAnswer)
        assert (answer.rewards, [meta.parsed_answer for meta in answer.metas], answer.error) == ([1.0, 2.0], ["A", "BB"], None)
        assert actor.lists == [["a", "bb"]]
    await buffer.close()


async def test_a_completion_that_fails_has_an_error_of_its_own_and_the_reward_that_was_chosen() -> None:
    for chosen in (None, 0.0, -1.0):
        buffer = RewardBuffer(app_of(Actor()), server_mode="batch", default_reward=chosen)
        answer: Any = await buffer.add_query(Query(query=["a", "poison", "nan"], metadata=[{}, {}, {}]))
        assert answer.rewards == [1.0, chosen, chosen]
        assert [error is None for error in answer.errors] == [True, False, False]
        assert answer.metas[1].docking is None, "without metadata"
        assert "no molecule" in answer.error
        with pytest.raises(AttributeError, match="no 'dockin'"):
            _ = answer.metas[0].dockin
        await buffer.close()


def test_an_endpoint_that_is_typed_with_the_models_of_the_original_returns_the_answers() -> None:
    for mode, url in (("singleton", "/one"), ("batch", "/many")):
        app = FastAPI()
        buffer = RewardBuffer(app, buffer_time=0.0, server_mode=mode, default_reward=0.0)  # type: ignore[arg-type]
        app.state.reward_model = Actor()

        @app.post("/one")
        @app.post("/many")
        async def reward(query: Query) -> Response | BatchResponse:
            return await buffer.add_query(query)  # type: ignore[return-value]  # noqa: B023

        with TestClient(app) as client:
            shown = {"parsed_answer": "ABC", "docking": {"smiles": ["abc"], "scores": [0.5]}, "reaction": None}
            found = client.post(url, json={"query": ["abc"], "metadata": [{}]}).json()
            spoilt = client.post(url, json={"query": ["poison"], "metadata": [{}]}).json()
        blank = {"parsed_answer": "", "docking": None, "reaction": None}
        if mode == "singleton":
            assert found == {"reward": 3.0, "error": None, "meta": shown, "next_turn_feedback": None}
            assert (spoilt["reward"], spoilt["meta"], "no molecule" in spoilt["error"]) == (0.0, blank, True)
        else:
            assert found == {"rewards": [3.0], "error": None, "metas": [shown], "next_turn_feedback": None}
            assert (spoilt["rewards"], spoilt["metas"], "no molecule" in spoilt["error"]) == ([0.0], [blank], True)
