"""What ROLL's keys mean, how rows become rewards, the judge of its environments, and what becomes of a failure."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import REWARDER, FakeScorer, made_of, number_or_late

from qreward.errors import ConfigError, RequestTimeout
from qreward.integrations.roll import (
    INVALID,
    MOST_DROPPED,
    InvalidGroupFilter,
    RewardUnavailable,
    check_dropped,
    failure_of,
    judge,
    judge_rows,
    rows_of,
    settings_of,
)
from qreward.integrations.trainers import RewardConfig, Rewarder
from qreward.results import WAITING


def rows(*responses: str, **columns: list[Any]) -> list[dict[str, Any]]:
    return rows_of(columns, [f"user\nquestion {at}" for at in range(len(responses))], responses)


async def judged(made: Rewarder, given: list[dict[str, Any]]) -> tuple[list[float], dict[str, list[float]]]:
    return await judge_rows(made, given)


async def test_scores_come_in_order_with_a_number_for_each_row_in_each_metric() -> None:
    scores, metrics = await judged(made_of(FakeScorer(number_or_late)), rows("0.25", "1", "-3"))
    assert scores == [0.25, 1.0, -3.0]
    assert {name: len(values) for name, values in metrics.items()} == dict.fromkeys(
        (
            *(f"judge/{name}" for name in ("ok", "seconds", "tokens", "cost", "unreported")),
            "judge/errors",
            *(f"judge/waiting_for_{code}" for code in WAITING),
        ),
        3,
    )
    assert metrics["judge/ok"] == [1.0] * 3
    assert metrics["judge/tokens"] == [7.0] * 3


async def test_a_failed_judge_never_becomes_0_unless_the_user_chose_it() -> None:
    given = rows("1", "what?", "0.5")
    chosen: list[dict[str, Any]] = [{}, {"on_failure": "raise"}, {"on_failure": "default"}]
    for settings in chosen:
        with pytest.raises(RewardUnavailable, match="1 of 3 rewards are missing; the first: RequestTimeout: no answer"):
            await judged(made_of(FakeScorer(number_or_late), **settings), given)
    scores, metrics = await judged(made_of(FakeScorer(number_or_late), on_failure=-0.5), given)
    assert scores == [1.0, -0.5, 0.5]
    assert metrics["judge/ok"] == [1.0, 0.0, 1.0]
    assert metrics["judge/errors"] == [0.0, 1.0, 0.0]
    assert (await judged(made_of(FakeScorer(number_or_late), on_failure=0), given))[0] == [1.0, 0.0, 0.5]


async def test_what_each_row_of_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="SkippingRolloutLoop"):
        failure_of(made_of(FakeScorer(), on_failure="none").config)
    with pytest.raises(ConfigError, match="float16"):
        failure_of(made_of(FakeScorer(), on_failure=1e5).config)
    for number in ("65505", "-1e5"):
        with pytest.raises(ConfigError, match="float16"):
            await judged(made_of(FakeScorer(number_or_late)), rows(number))
    assert (await judged(made_of(FakeScorer(number_or_late)), rows("65504")))[0] == [65504.0]


async def test_an_item_has_the_conversation_of_the_data_set_and_its_reference() -> None:
    scorer = FakeScorer(number_or_late)
    said = [{"role": "user", "content": "2 + 2?"}]
    given = rows("1", "2", messages=['[{"role": "user", "content": "2 + 2?"}]', said], ground_truth=["4", "5"], id=["a", "b"])
    await judged(made_of(scorer), given)
    assert scorer.asked == [
        {"prompt": said, "response": "1", "reference": "4"},
        {"prompt": said, "response": "2", "reference": "5"},
    ]


def test_a_column_of_another_length_belongs_to_no_row() -> None:
    assert rows_of({"whole": ["only one"]}, ["p", "q"], ["a", "b"]) == [
        {"prompts": "p", "responses": "a"},
        {"prompts": "q", "responses": "b"},
    ]


def test_drops_in_a_row_end_in_an_error_that_travels() -> None:
    check_dropped(MOST_DROPPED - 1, "prompts", "429")
    with pytest.raises(
        RewardUnavailable, match=r"100 prompts in a row were dropped, because rewards are missing\. The last: 429"
    ) as raised:
        check_dropped(MOST_DROPPED, "prompts", "429")
    again = pickle.loads(pickle.dumps(raised.value))  # the way through Ray
    assert (type(again), str(again)) == (RewardUnavailable, str(raised.value))


# the judge of environments


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    """Who judges in :func:`judge`; ``settings`` there are on_failure."""
    made = FakeScorer(number_or_late)
    monkeypatch.setattr(REWARDER, "rewarder", lambda settings, deadline, **_: made_of(made, deadline, **(settings or {})))
    return made


def test_it_judges_from_as_many_threads_as_there_are_environments(scorer: FakeScorer) -> None:
    with ThreadPoolExecutor(16) as threads:
        scores = list(threads.map(lambda at: judge("sum?", str(at), reference=str(at), rubric="x"), range(64)))
    assert scores == list(range(64))
    assert {(each["reference"], each["rubric"]) for each in scorer.asked} == {(str(at), "x") for at in range(64)}


def test_in_an_environment_a_failed_judge_is_rolls_invalid_reward_unless_the_user_chose_another(scorer: FakeScorer) -> None:
    assert judge("sum?", "what?") == INVALID == -999.0
    assert judge("sum?", "what?", settings={"on_failure": "none"}) == INVALID
    assert judge("sum?", "what?", settings={"on_failure": 0}) == 0.0
    with pytest.raises(RequestTimeout):
        judge("sum?", "what?", settings={"on_failure": "raise"})


def rollout(**columns: Any) -> SimpleNamespace:
    return SimpleNamespace(non_tensor_batch=columns)


def test_contract_a_group_filter_is_made_and_asked_as_roll_does() -> None:
    made = InvalidGroupFilter(SimpleNamespace(), SimpleNamespace(), "train")
    good = rollout(episode_scores=[0.5], step_scores=[[0.25, INVALID / 2 + 0.1]])
    assert made.filter(group_id=1, episode_id=2, group=[good, None]) is False
    assert made.filter(group_id=1, episode_id=2, group=[good, rollout(episode_scores=[INVALID + 0.7])]) is True
    assert made.filter(group_id=1, episode_id=2, group=[rollout(episode_scores=[0.0], step_scores=[[1.0], [INVALID]])]) is True


def test_a_dead_fleet_ends_the_run_and_not_only_its_groups() -> None:
    made = InvalidGroupFilter(None, None, "train")
    bad, good = [rollout(episode_scores=[INVALID])], [rollout(episode_scores=[1.0])]
    for _ in range(MOST_DROPPED - 1):
        assert made.filter(0, 0, bad)
    assert not made.filter(0, 0, good)
    for _ in range(MOST_DROPPED - 1):
        assert made.filter(0, 0, bad)
    with pytest.raises(RewardUnavailable, match=f"{MOST_DROPPED} groups in a row"):
        made.filter(7, 0, bad)


# settings


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


def test_a_prompt_is_a_template_or_one_of_rolls_by_name_which_is_asked_for_yes_or_no() -> None:
    named = "Question: {prompt}\nAnswer: {response}\nReference: {reference}\nYES or NO?"
    table: dict[str, tuple[str, str, str]] = {
        "strict": (named, "yes_no", "none"),
        "How good is {response} for {question}?": ("How good is {response} for {prompt}?", "score", "auto"),
    }
    made = {given: read(judge_model_name="judge-7b", judge_prompt=given).judge for given in table}
    assert {given: judge and (judge.prompt, judge.verdict, judge.response_format) for given, judge in made.items()} == table
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


def test_reward_manager_config_lies_over_rolls_own_keys_and_the_actor_may_name_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [{"judge": {"model": "ours", "verdict": "score"}}]
    found = read(judge_model_name="by-key", judge_prompt="strict", reward_manager_config=ours).judge
    assert found is not None
    assert (found.model, found.verdict, found.response_format) == (("ours",), "score", "none")
    file = tmp_path / "reward.json"
    file.write_text(json.dumps({"reward_model": "rm-7b"}))
    monkeypatch.setenv("QREWARD_REWARD", str(file))
    assert read().reward_model == "rm-7b"


def test_a_variable_of_the_file_is_replaced_once_and_a_file_under_the_keys_of_rolls_judge_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reward.json"
    file.write_text('{"client": {"endpoints": [{"base_url": "http://a:1/v1", "api_key": "${KEY}"}]}, "reward_model": "rm-7b"}')
    monkeypatch.setenv("KEY", "$ecret")
    config = read(system_envs={"QREWARD_REWARD": str(file)})
    assert config.client is not None
    assert [each.api_key.get_secret_value() for each in config.client.endpoints if each.api_key] == ["$ecret"]
    assert not Path(config.place).exists()


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
