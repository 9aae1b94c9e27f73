"""What is wrong with an adapter's settings is said with the file, the place and what to change, and no secret is ever shown."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from adapter_fakes import installed

from qreward import Endpoint
from qreward.errors import ConfigError, NoEndpoint
from qreward.integrations.trainers import RewardConfig, Rewarder, load_reward_config, rewarder
from qreward.judge import JudgeConfig

KEY = "sk-very-secret-0123456789"
ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "name": "judge-0"}
GOOD: dict[str, Any] = {"client": {"endpoints": [ENDPOINT]}, "judge": {"model": "judge-7b"}}
ROUTED: dict[str, Any] = {"client": {"endpoints": [{**ENDPOINT, "models": ["judge-*", "rm-*"]}]}}


def refusal(of: Callable[[], object]) -> str:
    """The words with which it is refused; "" if it is not."""
    try:
        of()
    except ConfigError as error:
        return "a key is shown" if KEY in str(error) else str(error)
    return ""


def test_without_settings_the_variable_is_named_or_the_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "QREWARD_REWARD" in refusal(load_reward_config)
    monkeypatch.setenv("QREWARD_REWARD", str(tmp_path / "gone.yaml"))
    assert "gone.yaml: cannot be read" in refusal(load_reward_config)


def test_a_wrong_setting_is_named_with_its_file_before_any_reward(tmp_path: Path) -> None:
    def judge(**changes: Any) -> dict[str, Any]:
        return {**GOOD, "judge": {**GOOD["judge"], **changes}}

    table: list[tuple[dict[str, Any], str]] = [
        ({}, "set exactly one of judge"),
        ({"client": GOOD["client"]}, "set exactly one of judge"),
        ({**GOOD, "reward_model": "rm-7b"}, "set exactly one of judge"),
        ({**GOOD, "cascade": {"stages": ["rm-7b", "rm-8b"]}}, "set exactly one of judge"),
        ({**GOOD, "deadlin": 5}, "unknown setting 'deadlin'; did you mean 'deadline'?"),
        ({**GOOD, "deadline": 0}, "deadline"),
        ({**GOOD, "on_failure": "zero"}, "on_failure"),
        ({**GOOD, "on_failure": False}, "on_failure: must be a finite number"),
        ({**GOOD, "on_failure": float("nan")}, "on_failure: must be a finite number"),
        ({**GOOD, "on_failure": float("inf")}, "on_failure: must be a finite number"),
        ({**GOOD, "on_failure": "nan"}, "on_failure"),
        ({**GOOD, "client": {"endpoints": [{**ENDPOINT, "weigth": 2}]}}, "weigth"),
        ({**GOOD, "priority": 10}, "priority: "),
        ({"reward_model": ""}, "reward_model: "),
        ({**GOOD, "columns": {"prompt": 3}}, "columns.prompt"),
        ({**GOOD, "columns": {"timeout": "seconds"}}, "columns: cannot fill 'timeout', which is not a field"),
        ({**GOOD, "columns": {"tenant": "team"}}, "columns: cannot fill 'tenant', which is not a field"),
        ({**GOOD, "columns": {"promt": "question"}}, "columns: unknown field 'promt'; did you mean 'prompt'?"),
        (judge(modle="k"), "judge: unknown setting 'modle'; did you mean 'model'?"),
        (judge(model=[]), "judge.model"),
        (judge(verdict="yesno"), "judge.verdict: unknown verdict 'yesno'; did you mean 'yes_no'?"),
        (judge(verdict="nomod:Cls"), "judge: verdict 'nomod:Cls': there is no module 'nomod'"),
        (judge(scale=[10, 0]), "judge: scale must be (lowest, highest)"),
        (judge(params={"samples": 3}), "judge.params: 'samples' is not a parameter of a request"),
        (judge(params={"model": "k"}), "judge.params: 'model' is not a parameter of a request"),
        (judge(params={"extra_headers": [KEY]}), "judge: extra_headers must be a mapping"),
        (judge(prompt="hello"), "judge: the prompt must contain {response}, which is judged"),
        (judge(rubric="gone.yaml"), "gone.yaml: cannot be read"),
        ({**ROUTED, "judge": {"model": "judgee-7b"}}, "judge.model: no endpoint of the client serves the model 'judgee-7b'; did you mean"),
        ({**ROUTED, "judge": {"model": ["judge-7b", "gpt"]}, "on_failure": 0.0}, "'gpt'; the routes are 'judge-*', 'rm-*'"),
        ({**ROUTED, "reward_model": "rn-7b"}, "reward_model: no endpoint of the client serves the model 'rn-7b'; did you mean 'rm-*'?"),
        ({**ROUTED, "cascade": {"stages": ["rm-7b", {"model": "gpt"}]}}, "cascade.stages.1.model: no endpoint of the client serves"),
    ]
    wrong = []
    for number, (settings, said) in enumerate(table):
        file = tmp_path / f"reward{number}.json"  # rewarders are kept by their file
        file.write_text(json.dumps(settings), encoding="utf-8")
        found = refusal(partial(rewarder, file, deadline=5.0))
        if not re.search(rf"(?s)reward{number}\.json.*{re.escape(said)}", found):
            wrong.append((settings, said, found))
    assert wrong == []
    loaded = load_reward_config({**ROUTED, "judge": {"model": "gpt"}}, place="mine")
    assert refusal(partial(rewarder, loaded, deadline=5.0)).startswith("mine: judge.model: "), "adapters give settings as well as files"
    given = {"system": "Judge {topic}."}
    assert rewarder({**judge(**given), "columns": {"topic": "subject"}}, deadline=5.0), "a field that the prompt names"


def test_a_mistake_in_a_cascade_a_rubric_or_a_method_is_named_with_its_line(tmp_path: Path) -> None:
    cases = (
        ("cascade:\n  stages: [rm-7b, {model: judge-7b}]\n  min_confidence: 0.7", ""),
        ("cascade:\n  stages: {quick: {model: judge-7b, samples: 3}, good: {model: judge-70b}}", ""),
        ("cascade:\n  stages: [rm-7b]", r": cascade\.stages: must have at least 2"),
        (
            "cascade:\n  stages:\n  - rm-7b\n  - {model: judge-7b, sacle: [1, 5]}",
            r": cascade\.stages\.1\.sacle: .* did you mean 'scale'",
        ),
        ("cascade:\n  stages: [rm-7b, 3]", r"cascade\.stages\.1: must be the settings of a judge, or the name of a reward model, not 3"),
        ("cascade:\n  stages: rm-7b", r"cascade\.stages: must be a list of stages"),
        ("cascade:\n  stages: [rm-7b, {model: judge-7b}]\n  min_confidence: 2", r"cascade: min_confidence of stage 'rm-7b' must be from"),
        ("cascade:\n  stages: [rm-7b, {model: judge-7b, verdict: yesno}]", r"cascade\.stages\.1\.verdict: unknown verdict 'yesno'"),
        ("judge:\n  model: judge-7b\n  rubric: {right: It is right.}", ""),
        ("judge:\n  model: judge-7b\n  rubric:\n  - {name: a, instructions: x}\n  - {name: b}", r": judge\.rubric\.1\.instructions"),
        ("judge:\n  model: judge-7b\n  method: decides", r": judge\.method: must be .* did you mean 'decide'"),
        ("judge:\n  model: judge-7b\n  verdict: yesno", r": judge\.verdict: unknown verdict 'yesno'; did you mean 'yes_no'"),
        ("judge:\n  model: judge-7b\n  params: {samples: 3}", r": judge\.params: 'samples' is not a parameter of a request"),
        ("judge:\n  model: judge-7b\n  method: decide\n  scale: [0, 100]", r"judge: a decision needs a scale of at most 20 whole numbers"),
    )
    wrong = []
    for number, (scorer, wanted) in enumerate(cases):
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"{scorer}\nclient:\n  endpoints: [{json.dumps(ENDPOINT)}]\n")
        said = refusal(partial(rewarder, file, deadline=1.0))
        if bool(said) != bool(wanted) or not re.search(wanted, said):
            wrong.append((scorer, said))
    assert wrong == []


async def test_an_endpoint_that_is_taken_out_while_rewards_are_had_is_a_failure() -> None:
    here = rewarder({**GOOD, "client": {"endpoints": [{**ENDPOINT, "name": "gone"}]}}, deadline=5.0)
    vars(here.scorer)["_client"].remove_endpoint("gone")
    scored = await here.score("p", "r")
    assert isinstance(scored.error, NoEndpoint)


def test_keys_and_headers_are_never_shown_and_go_with_pickled_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    secret = {**ENDPOINT, "api_key": "${JUDGE_KEY}", "headers": {"X-Team": KEY}}
    config = load_reward_config({**GOOD, "client": {"endpoints": [secret]}}, place="mine")
    here = rewarder(config, deadline=5.0)
    shown = [repr(config), str(config), config.model_dump_json(), repr(here), repr(here.scorer), str(vars(here))]
    with pytest.raises(ConfigError) as wrong:
        load_reward_config({**GOOD, "client": {"endpoints": [{**secret, "weight": -1}]}})
    assert not any(KEY in text for text in [*shown, str(wrong.value), repr(wrong.value)])
    again = pickle.loads(pickle.dumps(config))
    assert (again, again.place, again.client.endpoints[0].api_key.get_secret_value()) == (config, "mine", KEY)


def test_the_value_of_a_variable_is_taken_as_it_is_also_in_the_settings_of_the_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, content = tmp_path / "reward.json", {**GOOD, "client": {"endpoints": [{**ENDPOINT, "api_key": "${JUDGE_KEY}"}]}}
    file.write_text(json.dumps(content))
    for key in ("$ecret", "a${NO_SUCH}"):
        monkeypatch.setenv("JUDGE_KEY", key)
        for source in (content, file):
            client = load_reward_config(source).client
            assert client is not None
            assert client.endpoints[0].api_key is not None
            assert client.endpoints[0].api_key.get_secret_value() == key


def test_the_same_settings_have_one_rewarder_and_others_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch)
    file = tmp_path / "reward.json"
    file.write_text(json.dumps(GOOD), encoding="utf-8")
    monkeypatch.setenv("QREWARD_REWARD", str(file))
    first = rewarder(deadline=5.0)
    assert rewarder(file, deadline=5.0) is rewarder(str(file), deadline=5.0) is first
    assert rewarder(json.loads(json.dumps(GOOD)), deadline=5.0) is rewarder(GOOD, deadline=5.0)
    config = load_reward_config(file)
    assert rewarder(config, deadline=5.0) is rewarder(config, deadline=5.0)
    assert rewarder({**GOOD, "priority": 1}, deadline=5.0) is not first
    assert rewarder(GOOD, deadline=6.0) is not first
    secrets: list[dict[str, Any]] = [
        {"api_key": KEY},
        {"api_key": f"{KEY}0"},
        {"headers": {"X-Team": KEY}},
        {"headers": {"X-Team": f"{KEY}0"}},
    ]
    made = {id(rewarder({**GOOD, "client": {"endpoints": [{**ENDPOINT, **each}]}}, deadline=5.0)) for each in secrets}
    assert len(made) == 4, "settings that differ in a secret alone"


def test_settings_that_print_alike_share_a_rewarder_only_if_they_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)

    def one(messages: Any) -> str:
        return str(messages)

    def other(messages: Any) -> str:
        return str(messages)

    other.__qualname__ = one.__qualname__

    def made(end: Endpoint, temperature: float = 0.0) -> Rewarder:
        judge = JudgeConfig.from_content({"model": "judge-7b", "params": {"temperature": temperature}})
        return rewarder({"client": {"endpoints": [end]}, "judge": judge}, deadline=5.0)

    url = "http://127.0.0.1:9/v1"
    given = [(Endpoint(url, api_key=key), 0.0) for key in ("a", "b")] + [(Endpoint(url), 0.0), (Endpoint(url), 1.0)]
    given += [(Endpoint.local(function, models=["*"]), 0.0) for function in (one, other)]
    first = [made(*each) for each in given]
    assert len({*map(id, first)}) == len(given)
    assert made(Endpoint.local(other, models=["*"])) is first[-1], "settings that are made anew for each call"
    ends = [Endpoint(url, api_key="c")]
    changing = {**GOOD, "client": {"endpoints": ends}}
    before = rewarder(changing, deadline=5.0)
    ends[0] = Endpoint(url, api_key="d")
    assert rewarder(changing, deadline=5.0) is not before


def test_files_of_the_same_name_in_two_folders_have_rewarders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    made = []
    for number in (1, 2, 1):
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        settings = {**GOOD, "client": {"endpoints": [{"base_url": f"http://127.0.0.1:{number}/v1"}]}}
        (folder / "reward.json").write_text(json.dumps(settings), encoding="utf-8")
        monkeypatch.chdir(folder)
        made.append(rewarder("reward.json", deadline=5.0))
    assert made[0] is made[2] is not made[1]


def test_a_client_that_several_settings_name_is_one_so_that_its_limits_hold_over_all(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps(GOOD["client"]), encoding="utf-8")
    settings = [GOOD, {**GOOD, "judge": {"model": "judge-70b"}}, {**GOOD, "client": str(file)}]
    settings += [{**GOOD, "client": {"endpoints": [{**ENDPOINT, "weight": 2}]}}]
    first, *same, other = [vars(rewarder(each, deadline=5.0).scorer)["_client"] for each in settings]
    assert [client is first for client in same] == [True, True]
    assert other is not first


def test_files_in_the_settings_are_relative_to_the_settings_file(tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "criteria.json").write_text('{"rubric": {"right": "It is right."}}', encoding="utf-8")
    (folder / "fleet.json").write_text(json.dumps(GOOD["client"]), encoding="utf-8")
    judge = {"model": "judge-7b", "rubric": "criteria.json", "calibration": "calibration.json"}
    contents: list[dict[str, Any]] = [
        {"judge": judge},
        {"cascade": {"stages": ["rm-7b", judge]}},
        {"cascade": {"stages": {"a": judge, "b": "rm-7b"}}},
    ]
    file = folder / "reward.json"
    for content in contents:
        file.write_text(json.dumps({"client": "fleet.json", **content}), encoding="utf-8")
        config = load_reward_config(file)
        (found,) = (stage for stage in config.stages.values() if not isinstance(stage, str))
        assert found.calibration == str(folder / "calibration.json")
        assert found.rubric is not None
        assert config.client is not None
        assert config.client.endpoints[0].name == "judge-0"
        assert f"{folder / 'calibration.json'}: cannot be read" in refusal(partial(rewarder, {**GOOD, "judge": found}, deadline=1.0))
    file.write_text(json.dumps({"judge": {"model": "judge-7b", "calibration": str(tmp_path / "other.json")}}), encoding="utf-8")
    assert load_reward_config(file).judge.calibration == str(tmp_path / "other.json")  # type: ignore[union-attr]
    assert load_reward_config(file) == RewardConfig(judge=load_reward_config(file).judge)
