"""SkyRL-Gym 0.4 makes an environment for each episode, and calls ``init`` and ``step`` in one of 32 threads, as is done here."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from adapter_fakes import FakeScorer, configured, stub_modules
from trainers_tools import ended_quietly, fleet_of, settings_of

from qreward.errors import BadRequest, ConfigError, RequestTimeout
from qreward.integrations.trainers.rewarder import close_all

pytestmark = pytest.mark.real_time

PROMPT = [{"role": "user", "content": "2 + 2?"}]
EXTRAS = {"reward_spec": {"method": "judge", "ground_truth": "4"}, "extra_info": {"index": 7, "topic": "sums"}, "max_turns": 1}


class BaseTextEnv:
    """As SkyRL-Gym's, in what its subclasses inherit."""

    def __init__(self) -> None:
        self.turns, self.max_turns = 0, 1

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stub_modules(monkeypatch, {"skyrl_gym.envs.base_text_env": {"BaseTextEnv": BaseTextEnv}})
    monkeypatch.delitem(sys.modules, "qreward.integrations.skyrl", raising=False)
    yield importlib.import_module("qreward.integrations.skyrl")
    sys.modules.pop("qreward.integrations.skyrl", None)
    close_all()


def episode(cls: Any, action: str | None, extras: Any = None) -> tuple[Any, dict[str, float]]:
    """The reward and the metrics of an episode, as ``SkyRLGymGenerator`` has them."""
    env = cls(env_config={}, extras={**EXTRAS, **(extras or {})})
    history, _ = env.init([*PROMPT])
    history.append({"role": "assistant", "content": action})  # as SkyRL does, in the list that it got back
    output = env.step(action)
    assert (output["observations"], output["done"]) == ([], True)
    metrics = env.get_metrics()
    env.close()
    return output["reward"], metrics


def test_contract_an_entry_point_makes_it_with_configuration_and_extras_and_it_is_blocking(adapter: Any, scorer: FakeScorer) -> None:
    assert not inspect.iscoroutinefunction(adapter.QRewardEnv.step)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: episode(adapter.QRewardEnv, f"0.{at}"), range(1, 9)))
    assert [reward for reward, _ in found] == [at / 10 for at in range(1, 9)]
    assert {metrics["judge_ok"] for _, metrics in found} == {1.0}
    assert len(scorer.loops) == 1  # all threads share one loop
    assert set(scorer.timeouts) == {300.0}
    assert adapter.QRewardEnv().get_metrics() == {}


def test_the_prompt_is_that_of_init_and_entries_of_the_extras_are_columns(
    adapter: Any, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    episode(adapter.QRewardEnv, "0.5")
    configured(monkeypatch, tmp_path, columns={"prompt": "topic", "reference": "extra_info.index"})
    episode(adapter.QRewardEnv, "1", {"topic": "a column"})
    assert [(each["prompt"], each["response"], each["reference"]) for each in scorer.asked] == [
        (PROMPT, "0.5", "4"),
        ("a column", "1", 7),
    ]


def test_a_failed_judge_is_an_error_or_the_number_that_was_chosen(
    adapter: Any, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for action, error in (("no number", RequestTimeout), (None, BadRequest)):
        with pytest.raises(error):
            episode(adapter.QRewardEnv, action)
    configured(monkeypatch, tmp_path, on_failure=-1.0)
    reward, metrics = episode(adapter.QRewardEnv, "no number")
    assert (reward, metrics["judge_ok"]) == (-1.0, 0.0)
    configured(monkeypatch, tmp_path, on_failure="none")
    with pytest.raises(ConfigError, match="on_failure: none is not possible with skyrl"):
        adapter.QRewardEnv()


PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from test_skyrl_contract import BaseTextEnv, episode
for name in ("skyrl_gym", "skyrl_gym.envs", "skyrl_gym.envs.base_text_env"):
    sys.modules[name] = ModuleType(name)
sys.modules["skyrl_gym.envs.base_text_env"].BaseTextEnv = BaseTextEnv
from qreward.integrations.skyrl import QRewardEnv
executor = ThreadPoolExecutor(4)  # which SkyRL does not shut down
print([reward for reward, _ in executor.map(lambda action: episode(QRewardEnv, action), ["4", "5", "4", "5"])])
"""


def test_a_generator_whose_threads_have_judged_ends_quietly(tmp_path: Path) -> None:
    with fleet_of(process=True) as fleet:
        said = ended_quietly(PROGRAM, settings_of(fleet, tmp_path))
    assert said.splitlines() == ["[1.0, 0.0, 1.0, 0.0]"]
