"""tinker-cookbook 0.6 awaits ``compute_group_rewards`` once for a group, in its loop or in one that an executor makes, as is done here."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import FakeScorer, configured
from trainers_tools import ended_quietly, fleet_of, settings_of

from qreward.errors import ConfigError, RequestTimeout
from qreward.integrations.tinker_cookbook import QRewardGroup
from qreward.testing import FakeFleet, Faults

pytestmark = pytest.mark.real_time


class EnvGroupBuilder:
    """As tinker-cookbook's, whose rewards of a group are 0.0."""

    async def compute_group_rewards(self, trajectory_group: list[Any], env_group: Any) -> Any:
        return [(0.0, {}) for _ in trajectory_group]


class Group(QRewardGroup, EnvGroupBuilder):
    """One that can be pickled, as it is for an executor of processes."""


class Env:
    """As ``ProblemEnv``, with a renderer whose tokens are the message."""

    convo_prefix = ({"role": "system", "content": "Be brief."},)
    renderer = SimpleNamespace(parse_response=lambda tokens: ({"role": "assistant", "content": tokens}, None))

    def __init__(self, at: int = 2) -> None:
        self.at = at

    def get_question(self) -> str:
        return f"{self.at} + {self.at}?"

    def get_reference_answer(self) -> str:
        return str(2 * self.at)


def trajectory(said: Any) -> Any:
    steps = ("an earlier step", said)
    return SimpleNamespace(transitions=[SimpleNamespace(ac=SimpleNamespace(tokens=each), reward=0.0) for each in steps])


def rewards(said: list[Any], group: QRewardGroup | None = None) -> list[Any]:
    """As an executor computes them: in a loop of its own."""
    trajectories, envs = [trajectory(each) for each in said], [Env() for _ in said]
    return [reward for reward, _ in asyncio.run((group or Group()).compute_group_rewards(trajectories, envs))]


def test_contract_the_mixin_comes_before_the_builder_and_the_builder_can_be_pickled(scorer: FakeScorer) -> None:
    assert inspect.iscoroutinefunction(Group.compute_group_rewards)
    assert rewards(["0.5"], pickle.loads(pickle.dumps(Group()))) == [0.5]


def test_contract_a_group_has_a_reward_and_metrics_for_each_trajectory_and_one_loop_sends_all_requests(scorer: FakeScorer) -> None:
    found = asyncio.run(Group().compute_group_rewards([trajectory("0.25"), trajectory("1")], [Env(), Env()]))
    assert [reward for reward, _ in found] == [0.25, 1.0]
    assert [(metrics["judge_ok"], metrics["judge_tokens"]) for _, metrics in found] == [(1.0, 7.0)] * 2
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(rewards, [["0.5", "0.75"]] * 8)) == [[0.5, 0.75]] * 8
    assert len(scorer.loops) == 1
    assert set(scorer.timeouts) == {300.0}


def test_what_is_judged_is_the_last_message_without_its_thinking_and_a_method_adds_to_it(scorer: FakeScorer) -> None:
    class WithAnswer(Group):
        def row(self, trajectory: Any, env: Any) -> dict[str, Any]:
            return {**super().row(trajectory, env), "reference": "four"}

    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "0."}, {"type": "text", "text": "5"}]
    assert rewards([parts], WithAnswer()) == [0.5]
    assert rewards(["1"]) == [1.0]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    assert [(each["prompt"], each["response"], each["reference"]) for each in scorer.asked] == [(prompt, "0.5", "four"), (prompt, "1", "4")]
    with pytest.raises(ConfigError, match=r"int is no ProblemEnv; override row\(\) of Group"):
        asyncio.run(Group().compute_group_rewards([trajectory("1")], [1]))


def test_a_failed_judge_fails_its_group_or_is_the_number_that_was_chosen(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(RequestTimeout):
        rewards(["1", "no number"])
    configured(monkeypatch, tmp_path, on_failure=-1.0)
    assert rewards(["1", "no number"]) == [1.0, -1.0]
    configured(monkeypatch, tmp_path, on_failure="none")
    with pytest.raises(ConfigError, match="on_failure: none is not possible with tinker_cookbook"):
        rewards(["1"])


def test_a_timeout_of_the_grader_ends_the_requests_and_the_next_group_is_scored(
    fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QREWARD_REWARD", str(settings_of(fleet, tmp_path, attempt=None)))
    fleet.set("judge-0", faults=Faults(hang=1.0))

    async def graded() -> None:
        async with asyncio.timeout(0.3):
            await Group().compute_group_rewards([trajectory("4")], [Env()])

    with pytest.raises(TimeoutError):
        asyncio.run(graded())
    fleet.set("judge-0", faults=Faults())
    assert rewards(["4", "5"]) == [1.0, 0.0]


PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from test_tinker_cookbook_contract import rewards
print(rewards(["4", "5"]))
with ThreadPoolExecutor(4) as executor:
    print(list(executor.map(rewards, [["4", "5"]] * 4)))
"""


def test_a_trainer_whose_executor_has_run_groups_ends_quietly(tmp_path: Path) -> None:
    with fleet_of(process=True) as fleet:
        said = ended_quietly(PROGRAM, settings_of(fleet, tmp_path))
    assert said.splitlines() == ["[1.0, 0.0]", str([[1.0, 0.0]] * 4)]
