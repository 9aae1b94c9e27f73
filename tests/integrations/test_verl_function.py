"""verl's reward function: called as verl calls it, the same keys always, and a failure is a failure."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import REWARDER, SETTINGS, FakeScorer, configured, installed, stub_modules

from qreward import Endpoint
from qreward.errors import ConfigError, RequestTimeout
from qreward.integrations import verl as function_module
from qreward.integrations.trainers import RewardConfig
from qreward.integrations.trainers.texts import plain
from qreward.integrations.verl import ADAPTER, compute_score, load, source_of

KEYS = ["score", "judge_ok", "judge_error", "judge_seconds", "judge_tokens", "judge_cost", "judge_unreported"]


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    monkeypatch.setattr(function_module, "_WARNED", set())
    return installed(monkeypatch)


def settings_of(given: dict[str, Any], *kind: str) -> RewardConfig:
    return ADAPTER.rewarder(source_of(given, *kind), load).config


async def scored(solution: str | None = "1", extra: Any = None, **kwargs: Any) -> Any:
    extra = {"question": "2 + 2?"} if extra is None else extra
    given = {"data_source": "sums", "solution_str": solution, "ground_truth": "4", "extra_info": extra}
    return await compute_score(**given, **{**SETTINGS, **kwargs})


async def test_contract_verl_finds_a_coroutine_function_and_awaits_it_with_keywords_only(scorer: FakeScorer) -> None:
    function = getattr(importlib.import_module("qreward.integrations.verl"), "compute_score")  # noqa: B009 - by ``pkg://`` and its name
    assert inspect.iscoroutinefunction(function)
    extra = {"question": "2 + 2?", "num_turns": 2, "rollout_reward_scores": {}}
    result = await function(data_source="sums", solution_str="0.5", ground_truth="4", extra_info=extra, **SETTINGS)
    assert result["score"] == 0.5
    assert scorer.asked == [{"prompt": "2 + 2?", "response": "0.5", "reference": "4"}]
    assert scorer.timeouts == [ADAPTER.deadline]


async def test_contract_good_and_failed_samples_have_the_same_keys_and_values_that_stack(scorer: FakeScorer) -> None:
    good, failed = await scored("0.5", on_failure=-1.0), await scored("late", on_failure=-1.0)
    assert list(good) == list(failed) == KEYS
    assert [type(value) for value in good.values()] == [type(value) for value in failed.values()] == [float, float, str, *[float] * 4]
    assert (good["score"], good["judge_ok"], good["judge_error"], good["judge_tokens"]) == (0.5, 1.0, "", 7.0)
    assert (failed["score"], failed["judge_ok"], failed["judge_tokens"]) == (-1.0, 0.0, 0.0)
    assert failed["judge_error"] == "RequestTimeout: no answer in time"


async def test_a_failed_judge_never_becomes_a_number_unless_the_user_chose_it(scorer: FakeScorer) -> None:
    for chosen in ({}, {"on_failure": "default"}, {"on_failure": "raise"}):
        with pytest.raises(RequestTimeout, match="no answer in time") as caught:
            await scored("late", **chosen)
        assert any("on_failure" in note for note in caught.value.__notes__)
    assert (await scored("late", on_failure=0.0))["score"] == 0.0


async def test_an_error_is_said_to_become_zero_once_where_verls_manager_rate_limited_is_in_use(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = SimpleNamespace(_class_initialized=False)
    stub_modules(monkeypatch, {function_module.LIMITED: {"RateLimitedRewardManager": manager}})
    for in_use, lines in ((False, 0), (True, 1), (True, 1)):
        manager._class_initialized = in_use
        with pytest.raises(RequestTimeout):
            await scored("late")
        with pytest.raises(ConfigError):
            await scored("1", on_failur="raise")
        assert caplog.text.count("rate_limited turns this error and all others into a reward of 0.0; use naive or QRewardManager") == lines


async def test_what_verl_adds_is_ignored_a_strange_name_is_said_once_and_a_near_one_is_an_error(
    scorer: FakeScorer, caplog: pytest.LogCaptureFixture
) -> None:
    for turn in range(3):
        assert (await scored("1", reward_router_address=None, reward_model_tokenizer=object(), flavour=turn))["score"] == 1.0
    assert (await scored("1", flavour=3, deadline=7.0))["score"] == 1.0
    assert [record.getMessage() for record in caplog.records] == ["reward_kwargs: 'flavour' is not a setting of qreward and is ignored"]
    for wrong, right in (("on_failur", "on_failure"), ("colums", "columns"), ("Deadline", "deadline")):
        with pytest.raises(ConfigError, match=f"unknown setting '{wrong}'; did you mean '{right}'"):
            await scored("1", **{wrong: 1.0})


async def from_file(folder: Path, solution: str = "1", settings: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """Scored with a file of settings, and with what stands beside it."""
    file = folder / "reward.json"
    file.write_text(json.dumps({**SETTINGS, **(settings or {})}), encoding="utf-8")
    given: dict[str, Any] = {"data_source": "sums", "solution_str": solution, "ground_truth": "4", "extra_info": {"question": "2 + 2?"}}
    return (await compute_score(**given, config=str(file), **kwargs))["score"]


async def test_settings_come_from_a_file_and_what_stands_beside_it_goes_over_it(scorer: FakeScorer, tmp_path: Path) -> None:
    settings = {"deadline": 9.0, "on_failure": -2.0}
    assert await from_file(tmp_path, "late", settings) == -2.0
    assert await from_file(tmp_path, "late", settings, on_failure=-3) == -3.0
    assert scorer.timeouts == [9.0, 9.0]
    assert await from_file(tmp_path, "late", {"on_failure": -4.0}) == -2.0  # a file is read once and not for each sample
    assert len(REWARDER._MADE) == 2


def test_a_setting_beside_the_file_replaces_only_what_it_names(tmp_path: Path, scorer: FakeScorer) -> None:
    file = tmp_path / "reward.json"
    judge = {"model": "judge-7b", "range": [-1, 1], "prompt": "Judge {response}."}
    file.write_text(json.dumps({"client": {"endpoints": [{"base_url": "http://127.0.0.1:1/v1"}]}, "judge": judge}))
    made = settings_of({"config": str(file), "judge": {"model": "judge-70b"}}).judge
    assert made is not None
    assert (made.model, made.range, made.prompt) == (("judge-70b",), (-1.0, 1.0), "Judge {response}.")


def test_a_variable_of_the_file_is_replaced_once(tmp_path: Path, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "reward.json"
    endpoint = {"base_url": "http://127.0.0.1:1/v1", "api_key": "${KEY}"}
    file.write_text(json.dumps({"client": {"endpoints": [endpoint]}, "judge": {"model": "judge-7b"}}))
    monkeypatch.setenv("KEY", "$ecret")
    client = settings_of({"config": str(file), "deadline": 3.0}).client
    assert client is not None
    assert [each.api_key.get_secret_value() for each in client.endpoints if each.api_key] == ["$ecret"]


def test_settings_that_print_alike_are_one_only_if_they_are_equal(scorer: FakeScorer) -> None:
    ends = [Endpoint("http://127.0.0.1:9/v1", api_key=key) for key in ("a", "b", "a")]
    first, other, again = [settings_of({**SETTINGS, "client": {"endpoints": [end]}}) for end in ends]
    assert first is again
    assert other is not first


async def test_without_settings_the_environment_names_the_file(scorer: FakeScorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch, tmp_path)
    assert (await compute_score("", "1", None, {"prompt": "?"}))["score"] == 1.0


def test_a_served_model_is_asked_where_no_client_is_configured_and_not_where_one_is(scorer: FakeScorer) -> None:
    alone = settings_of({"judge": {"model": "genrm"}, "reward_router_address": "10.0.0.1:8000"}, "sglang")
    assert alone.client
    assert [(each.base_url, each.kind) for each in alone.client.endpoints] == [("http://10.0.0.1:8000/v1", "sglang")]
    both = settings_of({**SETTINGS, "reward_router_address": "10.0.0.1:8000"})
    assert both.client
    assert [each.base_url for each in both.client.endpoints] == ["http://127.0.0.1:9/v1"]


class Boxed(Mapping[str, Any]):
    """As OmegaConf's containers: a mapping, and not a dict."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def __getitem__(self, name: str) -> Any:
        value = self.content[name]
        return Boxed(value) if isinstance(value, dict) else value

    def __iter__(self) -> Any:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


def array(content: list[Any]) -> Any:
    """As numpy's."""
    return SimpleNamespace(tolist=lambda: content)


async def test_containers_of_omegaconf_and_arrays_become_plain(scorer: FakeScorer) -> None:
    assert plain(Boxed({"a": {"b": ("c", 1)}, "d": array([{"e": array([1])}])})) == {"a": {"b": ["c", 1]}, "d": [{"e": [1]}]}
    boxed = {name: Boxed(value) for name, value in SETTINGS.items()}
    conversation = [{"role": "user", "content": "2 + 2?"}]
    assert (await scored("1", {"prompt": array(conversation)}, **boxed))["score"] == 1.0
    assert scorer.asked[0]["prompt"] == conversation


async def test_a_wrong_setting_is_said_with_the_place_it_stands_at(tmp_path: Path) -> None:
    for settings in ({"judge": {"model": "judge-7b", "prompt": "{response.x}"}}, {"priority": 10}):
        with pytest.raises(ConfigError, match=r"^reward_kwargs: "):
            await scored("1", **settings)
        with pytest.raises(ConfigError, match=r"reward\.json and reward_kwargs: "):
            await from_file(tmp_path, **settings)
