"""verl's reward manager, on a base class with the signatures of verl 0.9.1; on verl itself it runs in ``make slow-verl``."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import SETTINGS, FakeScorer, installed, stub_modules

import qreward.integrations.verl as adapter
from qreward.errors import ConfigError, RequestTimeout

pytestmark = pytest.mark.real_time

BASE = "verl.experimental.reward_loop.reward_manager.base"
MANAGER = "qreward.integrations.verl.manager"


class RewardManagerBase:
    """verl's, without its tensors."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.compute_score = compute_score


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    stub_modules(monkeypatch, {BASE: {"RewardManagerBase": RewardManagerBase}})
    monkeypatch.delitem(sys.modules, MANAGER, raising=False)
    return installed(monkeypatch)


class Tokens(list[int]):
    """As a tensor of one dimension: sliced, summed, and with a shape."""

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return Tokens(found) if isinstance(at, slice) else found

    def sum(self) -> int:
        return sum(self)


class Data(list[Any]):
    """As a DataProto: a slice is one as well."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return Data(found) if isinstance(at, slice) else found


class Tokenizer:
    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        assert skip_special_tokens
        return "".join(map(chr, tokens))


def sequence(text: str, padding: int = 0, **columns: Any) -> Any:
    responses = Tokens([*map(ord, text), *([0] * padding)])
    mask = Tokens([0, 1, 1, *([1] * len(text)), *([0] * padding)])  # a prompt of two before it, padded on the left
    return SimpleNamespace(batch={"responses": responses, "attention_mask": mask}, non_tensor_batch={"data_source": "sums", **columns})


def verl_config(path: str | None = None, **kwargs: Any) -> Any:
    function = {"path": path, "name": "compute_score", "reward_kwargs": {**SETTINGS, **kwargs}}
    model = SimpleNamespace(rollout=SimpleNamespace(name="sglang"))

    class Reward(dict[str, Any]):
        reward_model = model

    return SimpleNamespace(reward=Reward(custom_reward_function=function))


def manager_of(config: Any, **given: Any) -> Any:
    """As verl loads it with ``source: importlib``: by the package's name."""
    kind = getattr(importlib.import_module("qreward.integrations.verl"), "QRewardManager")  # noqa: B009
    return kind(config=config, tokenizer=Tokenizer(), compute_score=None, **given)


async def test_contract_the_manager_is_one_of_verls_and_scores_the_last_sequence_with_its_prompt(scorer: FakeScorer) -> None:
    asked = [{"role": "user", "content": "2 + 2?"}]
    data = Data([sequence("9"), sequence("0.5", 3, raw_prompt=asked, reward_model={"ground_truth": "4"}, extra_info={"index": 1})])
    manager = manager_of(verl_config(), reward_router_address=None, reward_model_tokenizer=None)
    assert issubclass(type(manager), RewardManagerBase)
    result = await manager.run_single(data)
    assert result["reward_score"] == 0.5
    assert list(result["reward_extra_info"]) == [
        "score",
        "judge_ok",
        "judge_error",
        "judge_seconds",
        "judge_tokens",
        "judge_cost",
        "judge_unreported",
    ]
    assert [(each["prompt"], each["response"], each["reference"]) for each in scorer.asked] == [(asked, "0.5", "4")]


def test_the_manager_is_not_loaded_with_the_package_for_verl_may_not_be_there() -> None:
    assert "verl" not in sys.modules
    assert callable(adapter.compute_score)
    with pytest.raises(AttributeError, match="nothing"):
        _ = adapter.nothing  # type: ignore[attr-defined]


async def test_a_failed_judge_ends_the_managers_sample_unless_a_number_was_chosen(scorer: FakeScorer) -> None:
    data = Data([sequence("late", raw_prompt="2 + 2?")])
    with pytest.raises(RequestTimeout):
        await manager_of(verl_config()).run_single(data)
    chosen = await manager_of(verl_config(on_failure=-1.0)).run_single(data)
    assert chosen["reward_score"] == -1.0
    assert chosen["reward_extra_info"]["judge_ok"] == 0.0


async def test_the_manager_does_not_compare_the_text_of_its_settings_for_each_sample(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(verl_config())
    monkeypatch.setattr(sys.modules["qreward.integrations.trainers.rewarder"], "json", None)
    assert (await manager.run_single(Data([sequence("0.5", raw_prompt="2 + 2?")])))["reward_score"] == 0.5


async def test_columns_of_the_data_of_extra_info_and_of_tools_can_be_named(scorer: FakeScorer) -> None:
    judge = {"model": "j", "prompt": "{prompt} {response} {depth} {uid} {tool}"}
    columns: dict[str, Any] = {"extra_info": {"depth": 3}, "tool_extra_fields": {"tool": "calculator"}, "uid": "u1", "raw_prompt": "?"}
    await manager_of(verl_config(judge=judge)).run_single(Data([sequence("1", **columns)]))
    assert scorer.asked[0].items() >= {"depth": 3, "uid": "u1", "tool": "calculator"}.items()


def test_wrong_settings_and_another_function_are_refused_when_the_manager_is_made(scorer: FakeScorer) -> None:
    with pytest.raises(ConfigError, match="on_failure: none is not possible with verl"):
        manager_of(verl_config(on_failure="none"))
    with pytest.raises(ConfigError, match="unknown verdict 'yesno'"):
        manager_of(verl_config(judge={"model": "judge-7b", "verdict": "yesno"}))
    with pytest.raises(ConfigError, match="does not call a reward function"):
        manager_of(verl_config("/my/rewards.py"))
    for path in ("pkg://qreward.integrations.verl", "pkg://qreward/integrations/verl"):
        assert manager_of(verl_config(path)).settings.judge


def test_a_model_that_verl_serves_is_asked_in_the_dialect_of_its_engine(scorer: FakeScorer) -> None:
    config = verl_config()
    config.reward["custom_reward_function"]["reward_kwargs"] = {"reward_model": "rm-7b"}
    settings = manager_of(config, reward_router_address="[::1]:8000").settings
    assert settings.client
    assert [(each.base_url, each.kind) for each in settings.client.endpoints] == [("http://[::1]:8000/v1", "sglang")]
