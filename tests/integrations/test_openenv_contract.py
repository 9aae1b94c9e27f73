"""OpenEnv 0.10 calls a rubric in ``step``, in a thread without a loop, or in ``step_async``; ours scores in both, and never guesses."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adapter_fakes import FakeScorer, configured, stub_modules
from pydantic import BaseModel
from trainers_tools import ended_quietly, fleet_of, settings_of

from qreward.errors import BadRequest, ConfigError, QRewardError, RequestTimeout
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeEndpoint, FakeFleet

pytestmark = pytest.mark.real_time


class Rubric:
    """As OpenEnv's, in what a call does with the result of ``forward``."""

    def __init__(self) -> None:
        self.last_score: Any = None

    def __call__(self, action: Any, observation: Any) -> Any:
        assert not inspect.iscoroutinefunction(self.forward)  # type: ignore[attr-defined]
        result = self.forward(action, observation)  # type: ignore[attr-defined]
        return self._awaited(result) if inspect.iscoroutine(result) else self._kept(result)

    async def _awaited(self, result: Any) -> Any:
        return self._kept(await result)

    def _kept(self, result: Any) -> Any:
        self.last_score = result
        return result


class Action(BaseModel):
    metadata: dict[str, Any] = {}
    message: str | None


class Observation(BaseModel):
    metadata: dict[str, Any] = {}
    question: str = "2 + 2?"


async def stepped(rubric: Any, message: str | None) -> Any:
    """As in ``step_async``."""
    return await rubric(Action(message=message), Observation())


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stub_modules(monkeypatch, {"openenv.core.rubrics": {"Rubric": Rubric}})
    monkeypatch.delitem(sys.modules, "qreward.integrations.openenv", raising=False)
    yield importlib.import_module("qreward.integrations.openenv")
    sys.modules.pop("qreward.integrations.openenv", None)
    close_all()


def test_contract_a_step_in_a_thread_gets_the_reward_and_one_in_a_loop_awaits_it_and_both_are_recorded(
    adapter: Any, scorer: FakeScorer
) -> None:
    rubric = adapter.QRewardRubric()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: rubric(Action(message=f"0.{at}"), Observation()), range(1, 9)))
    assert found == [at / 10 for at in range(1, 9)]
    assert asyncio.run(stepped(rubric, "0.75")) == 0.75
    assert rubric.last_score == 0.75
    assert (rubric.metrics["judge_ok"], rubric.metrics["judge_tokens"], rubric.metrics["judge_cost"]) == (1.0, 7.0, 0.0)
    assert len(scorer.loops) == 2  # all threads share one loop
    assert set(scorer.timeouts) == {50.0}


def test_what_is_judged_is_the_actions_only_field_or_all_of_its_fields_and_columns_choose_one(
    adapter: Any, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Move(Action):
        message: str | None = "é"
        count: int = 2

    class WithAnswer(adapter.QRewardRubric):  # type: ignore[misc]
        def row(self, action: Any, observation: Any) -> dict[str, Any]:
            return {**super().row(action, observation), "answer": "4"}

    monkeypatch.setattr(scorer, "said", lambda response: 0.5)
    adapter.QRewardRubric()(Action(message="four", metadata={"a": 1}), Observation())
    WithAnswer()(Move(), Observation())
    adapter.QRewardRubric()("a text", {"prompt": "a mapping"})
    configured(monkeypatch, tmp_path, columns={"response": "action.message", "prompt": "observation.metadata.task"})
    adapter.QRewardRubric()(Move(), Observation(metadata={"task": "add"}))
    assert [(each["prompt"], each["response"], each["reference"]) for each in scorer.asked] == [
        ("2 + 2?", "four", None),
        ("2 + 2?", '{"message": "é", "count": 2}', "4"),
        ("a mapping", "a text", None),
        ("add", "é", None),
    ]


def test_a_failed_judge_never_becomes_a_number_unless_the_user_chose_it(
    adapter: Any, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rubric = adapter.QRewardRubric()
    for message, error in (("no number", RequestTimeout), (None, BadRequest)):
        with pytest.raises(error):
            rubric(Action(message=message), Observation())
        with pytest.raises(error):
            asyncio.run(stepped(rubric, message))
    assert rubric.last_score is None
    for chosen, reward in (("none", None), (-1.0, -1.0), (0.0, 0.0)):
        configured(monkeypatch, tmp_path, on_failure=chosen)
        assert adapter.QRewardRubric()(Action(message="no number"), Observation()) == reward


def test_wrong_settings_fail_when_the_rubric_is_made(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QREWARD_REWARD", raising=False)
    with pytest.raises(ConfigError, match="no reward settings"):
        adapter.QRewardRubric()


ANSWERS = {"<year>": "In 2024 I would say 0.2", "<refusal>": "cannot answer", "<nothing>": "", "<score>": "0.2"}


def test_an_answer_that_is_no_verdict_is_an_error_where_openenvs_own_judge_reads_1_or_0(adapter: Any, tmp_path: Path) -> None:
    said = lambda messages: next(text for name, text in ANSWERS.items() if name in str(messages[-1]["content"]))  # noqa: E731
    with FakeFleet([FakeEndpoint("judge-0", responder=said)]) as fleet:
        file = str(settings_of(fleet, tmp_path, deadline=2.0))
        rubric = adapter.QRewardRubric(file)
        assert rubric(Action(message="<score>"), Observation()) == 0.2
        for name in ("<year>", "<refusal>", "<nothing>"):
            with pytest.raises(QRewardError):
                rubric(Action(message=name), Observation())


PROGRAM = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from test_openenv_contract import Action, Observation, Rubric
for name, content in (("openenv", {}), ("openenv.core", {}), ("openenv.core.rubrics", {"Rubric": Rubric})):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)
from qreward.integrations.openenv import QRewardRubric
class Right(QRewardRubric):
    def row(self, action, observation):
        return {**super().row(action, observation), "answer": "4"}
rubric = Right()
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda text: rubric(Action(message=text), Observation()), ["4", "5", "4", "5"])))
async def awaited():
    return await rubric(Action(message="4"), Observation())
for _ in range(2):
    print(asyncio.run(awaited()))
"""


def test_a_server_that_has_stepped_in_threads_and_in_loops_ends_quietly(tmp_path: Path) -> None:
    with fleet_of(process=True) as fleet:
        said = ended_quietly(PROGRAM, settings_of(fleet, tmp_path))
    assert said.splitlines() == ["[1.0, 0.0, 1.0, 0.0]", "1.0", "1.0"]
