"""From ROLL's keys to settings: what of its own judge's keys is understood, and what lies over what."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qreward.errors import ConfigError
from qreward.integrations.roll.rewards import settings_of
from qreward.integrations.trainers import RewardConfig

PROMPTS = {"strict": "Question: {question}\nAnswer: {response}\nReference: {reference}\nYES or NO?"}


def read(**keys: Any) -> RewardConfig:
    """Settings of a worker that has the keys of ROLL's ``RewardConfig``, None or empty where not given."""
    usual = {"judge_prompt": None, "judge_model_type": None, "judge_model_name": None, "judge_api_url": None, "judge_api_key": None}
    return settings_of(SimpleNamespace(**(usual | {"reward_manager_config": [], "system_envs": {}} | keys)), PROMPTS)


def test_the_keys_of_rolls_own_judge_are_enough() -> None:
    config = read(
        judge_model_name="judge-7b", judge_api_url="http://a:1/v1, http://b:2/v1", judge_api_key="sk-secret", judge_model_type="api"
    )
    assert config.judge is not None
    assert config.client is not None
    assert config.judge.model == ("judge-7b",)
    assert [endpoint.base_url for endpoint in config.client.endpoints] == ["http://a:1/v1", "http://b:2/v1"]
    assert {endpoint.api_key.get_secret_value() for endpoint in config.client.endpoints if endpoint.api_key} == {"sk-secret"}
    assert "sk-secret" not in repr(config)


def test_a_prompt_of_rolls_by_name_is_asked_for_yes_or_no() -> None:
    judge = read(judge_model_name="judge-7b", judge_prompt="strict").judge
    assert judge is not None
    assert judge.prompt == "Question: {prompt}\nAnswer: {response}\nReference: {reference}\nYES or NO?"
    assert (judge.verdict, judge.response_format) == ("yes_no", "none")


def test_a_template_is_taken_as_it_is() -> None:
    judge = read(judge_model_name="judge-7b", judge_prompt="How good is {response} for {question}?").judge
    assert judge is not None
    assert judge.prompt == "How good is {response} for {prompt}?"
    assert judge.verdict == "score"


def test_a_prompt_that_is_neither_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="neither a template nor the name of one of ROLL's prompts, which are 'strict'"):
        read(judge_model_name="judge-7b", judge_prompt="strickt")


def test_the_file_lies_under_rolls_keys_and_these_under_reward_manager_config(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    file.write_text(json.dumps({"deadline": 10, "priority": 2, "judge": {"model": "in-file", "samples": 3, "reasks": 4}}))
    config = read(
        system_envs={"QREWARD_REWARD": str(file)},
        judge_model_name="in-yaml",
        reward_manager_config=[{"deadline": 20}, {"judge": {"samples": 5}}],
    )
    assert config.judge is not None
    assert (config.deadline, config.priority) == (20, 2)
    assert (config.judge.model, config.judge.samples, config.judge.reasks) == (("in-yaml",), 5, 4)


def test_reward_manager_config_lies_over_rolls_own_keys() -> None:
    config = read(
        judge_model_name="by-key", judge_prompt="strict", reward_manager_config=[{"judge": {"model": "ours", "verdict": "score"}}]
    )
    assert config.judge is not None
    assert (config.judge.model, config.judge.verdict, config.judge.response_format) == (("ours",), "score", "none")


def test_the_file_may_be_named_by_the_environment_of_the_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "reward.json"
    file.write_text(json.dumps({"reward_model": "rm-7b"}))
    monkeypatch.setenv("QREWARD_REWARD", str(file))
    assert read().reward_model == "rm-7b"


def test_what_is_wrong_is_said_without_a_key() -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({}, "no judge is configured; set judge_model_name"),
        ({"judge_model_name": "m", "judge_model_type": "inference"}, "serve the judge"),
        ({"judge_model_name": "m", "judge_model_type": "cluster"}, "serve the judge"),
        ({"judge_model_name": "m", "judge_api_key": "sk-secret"}, "judge_api_key is set without judge_api_url"),
        ({"reward_manager_config": {"deadline": 3}}, "must be a list of mappings"),
        ({"judge_model_name": "m", "reward_manager_config": [{"deadlin": 3}]}, "deadline"),
        ({"judge_model_name": "m", "reward_manager_config": [{"reward_model": "rm"}]}, "exactly one of judge .* reward_model"),
    ]
    for keys, said in table:
        with pytest.raises(ConfigError, match=said) as caught:
            read(**keys)
        assert "sk-secret" not in str(caught.value), keys
