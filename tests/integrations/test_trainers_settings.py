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

from qreward.errors import ConfigError, NoEndpoint
from qreward.integrations.trainers import RewardConfig, load_reward_config, rewarder

KEY = "sk-very-secret-0123456789"
ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "name": "judge-0"}
GOOD: dict[str, Any] = {"client": {"endpoints": [ENDPOINT]}, "judge": {"model": "judge-7b"}}


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


def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    table: list[tuple[dict[str, Any], str]] = [
        ({}, "set exactly one of judge"),
        ({"client": GOOD["client"]}, "set exactly one of judge"),
        ({**GOOD, "reward_model": "rm-7b"}, "set exactly one of judge"),
        ({**GOOD, "deadlin": 5}, "unknown setting 'deadlin'; did you mean 'deadline'?"),
        ({**GOOD, "deadline": 0}, "deadline"),
        ({**GOOD, "deadline": True}, "deadline: must be a number"),
        ({**GOOD, "on_failure": "zero"}, "on_failure"),
        ({**GOOD, "on_failure": False}, "on_failure: must be a finite number"),
        ({**GOOD, "on_failure": float("nan")}, "on_failure: must be a finite number"),
        ({**GOOD, "on_failure": float("inf")}, "on_failure: must be a finite number"),
        ({**GOOD, "on_failure": "nan"}, "on_failure"),
        ({**GOOD, "judge": {"model": "j", "modle": "k"}}, "judge: unknown setting 'modle'; did you mean 'model'?"),
        ({**GOOD, "judge": {"model": []}}, "judge.model"),
        ({**GOOD, "client": {"endpoints": [{**ENDPOINT, "weigth": 2}]}}, "weigth"),
        ({**GOOD, "columns": {"prompt": 3}}, "columns.prompt"),
        ({**GOOD, "priority": "soon"}, "priority"),
        ({**GOOD, "priority": 10}, "priority: "),
        ({**GOOD, "priority": -1}, "priority: "),
        ({"reward_model": ""}, "reward_model: "),
        ({**GOOD, "columns": {"timeout": "seconds"}}, "columns: cannot fill 'timeout', which is not a field"),
        ({**GOOD, "columns": {"tenant": "team"}}, "columns: cannot fill 'tenant', which is not a field"),
    ]
    wrong = []
    for settings, said in table:
        file.write_text(json.dumps(settings), encoding="utf-8")
        found = refusal(partial(load_reward_config, file))
        if not re.search(rf"(?s)reward\.json.*{re.escape(said)}", found):
            wrong.append((settings, said, found))
    assert wrong == []


def test_a_setting_of_which_no_judge_can_be_made_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    table: list[tuple[dict[str, Any], str]] = [
        ({"verdict": "yesno"}, "judge.verdict: unknown verdict 'yesno'; did you mean 'yes_no'?"),
        ({"verdict": "nomod:Cls"}, "judge: verdict 'nomod:Cls': there is no module 'nomod'"),
        ({"scale": [10, 0]}, "judge: scale must be (lowest, highest)"),
        ({"params": {"n": 3}}, "judge: n cannot be set as a parameter"),
        ({"params": {"samples": 3}}, "judge.params: 'samples' is not a parameter of a request"),
        ({"params": {"model": "k"}}, "judge.params: 'model' is not a parameter of a request"),
        ({"params": {"extra_headers": [KEY]}}, "judge: extra_headers must be a mapping"),
        ({"prompt": "hello"}, "judge: the prompt must contain {response}, which is judged"),
        ({"prompt": "{response.x}"}, "judge: prompt, line 1: '{response.x}' is not a placeholder"),
    ]
    wrong = []
    for judge, said in table:
        file.write_text(json.dumps({**GOOD, "judge": {**GOOD["judge"], **judge}}), encoding="utf-8")
        for source in (file, load_reward_config(file)):  # adapters give either
            if f"reward.json: {said}" not in (found := refusal(partial(rewarder, source, deadline=5.0))):
                wrong.append((judge, said, found))
    assert wrong == []


def test_a_column_for_a_field_that_is_not_used_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    file.write_text(json.dumps({**GOOD, "columns": {"promt": "question"}}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"reward\.json: columns: .*'promt'; did you mean 'prompt'\?"):
        rewarder(file, deadline=5.0)
    judge = {"model": "judge-7b", "system": "Judge {topic}."}
    assert rewarder({**GOOD, "judge": judge, "columns": {"topic": "subject"}}, deadline=5.0)


def test_a_model_that_no_route_serves_is_a_wrong_setting_and_no_failed_reward(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    client = {"endpoints": [{**ENDPOINT, "models": ["judge-*", "rm-*"]}]}
    routes = "the routes are 'judge-*', 'rm-*'"
    table: list[tuple[dict[str, Any], str]] = [
        ({"judge": {"model": "judgee-7b"}}, "judge.model: no endpoint of the client serves the model 'judgee-7b'; did you mean 'judge-*'?"),
        ({"judge": {"model": ["judge-7b", "gpt"]}}, f"judge.model: no endpoint of the client serves the model 'gpt'; {routes}"),
        ({"reward_model": "rn-7b"}, "reward_model: no endpoint of the client serves the model 'rn-7b'; did you mean 'rm-*'?"),
    ]
    wrong = []
    for scorer, said in table:
        for on_failure in (0.0, "default"):
            file.write_text(json.dumps({"client": client, **scorer, "on_failure": on_failure}), encoding="utf-8")
            if f"reward.json: {said}" not in (found := refusal(partial(rewarder, file, deadline=5.0))):
                wrong.append((scorer, said, found))
    assert wrong == []


async def test_an_endpoint_that_is_taken_out_while_rewards_are_had_is_a_failure() -> None:
    here = rewarder({**GOOD, "client": {"endpoints": [{**ENDPOINT, "name": "gone"}]}}, deadline=5.0)
    vars(here.scorer)["_client"].remove_endpoint("gone")
    scored = await here.score("p", "r")
    assert isinstance(scored.error, NoEndpoint)


def test_yaml_json_and_toml_say_the_same(tmp_path: Path) -> None:
    texts = {
        "reward.yaml": "reward_model: rm-7b\non_failure: -1\ncolumns: {prompt: question}\n",
        "reward.json": '{"reward_model": "rm-7b", "on_failure": -1, "columns": {"prompt": "question"}}',
        "reward.toml": 'reward_model = "rm-7b"\non_failure = -1\n[columns]\nprompt = "question"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    expected = RewardConfig(reward_model="rm-7b", on_failure=-1.0, columns={"prompt": "question"})
    assert [name for name in texts if load_reward_config(tmp_path / name) != expected] == []


def test_the_client_may_be_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("endpoints: [{base_url: 'http://127.0.0.1:9/v1', name: judge-0}]", encoding="utf-8")
    config = load_reward_config({"client": str(tmp_path / "fleet.yaml"), "reward_model": "rm-7b"})
    assert config.client is not None
    assert [endpoint.name for endpoint in config.client.endpoints] == ["judge-0"]


def test_keys_and_headers_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    secret = {**ENDPOINT, "api_key": "${JUDGE_KEY}", "headers": {"X-Team": KEY}}
    config = load_reward_config({**GOOD, "client": {"endpoints": [secret]}})
    here = rewarder(config, deadline=5.0)
    shown = [repr(config), str(config), config.model_dump_json(), repr(here), repr(here.scorer), str(vars(here))]
    with pytest.raises(ConfigError) as wrong:
        load_reward_config({**GOOD, "client": {"endpoints": [{**secret, "weight": -1}]}})
    assert not any(KEY in text for text in [*shown, str(wrong.value), repr(wrong.value)])


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


@pytest.mark.parametrize("secret", [{"api_key": KEY}, {"headers": {"X-Team": KEY}}], ids=["key", "header"])
def test_settings_that_differ_in_a_secret_alone_have_different_rewarders(monkeypatch: pytest.MonkeyPatch, secret: dict[str, Any]) -> None:
    installed(monkeypatch)
    other = json.loads(json.dumps(secret).replace("0123", "3210"))
    made = {id(rewarder({**GOOD, "client": {"endpoints": [{**ENDPOINT, **each}]}}, deadline=5.0)) for each in (secret, other)}
    assert len(made) == 2


def test_a_client_that_several_settings_name_is_one_so_that_its_limits_hold_over_all() -> None:
    judge = rewarder(GOOD, deadline=5.0)
    again = rewarder({**GOOD, "judge": {"model": "judge-70b"}}, deadline=5.0)
    other = rewarder({**GOOD, "client": {"endpoints": [{**ENDPOINT, "weight": 2}]}}, deadline=5.0)
    clients = [vars(each.scorer)["_client"] for each in (judge, again, other)]
    assert clients[0] is clients[1]
    assert clients[0] is not clients[2]


def test_settings_pickle_with_what_they_hold() -> None:
    config = load_reward_config({**GOOD, "client": {"endpoints": [{**ENDPOINT, "api_key": KEY}]}, "on_failure": "none"})
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.place == config.place
    assert again.client.endpoints[0].api_key.get_secret_value() == KEY


def test_the_files_of_judges_are_relative_to_the_settings_file(tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "criteria.json").write_text('{"rubric": {"right": "It is right."}}', encoding="utf-8")
    judge = {"model": "judge-7b", "rubric": "criteria.json", "calibration": "calibration.json"}
    contents: list[dict[str, Any]] = [
        {"judge": judge},
        {"cascade": {"stages": ["rm-7b", judge]}},
        {"cascade": {"stages": {"a": judge, "b": "rm-7b"}}},
    ]
    for content in contents:
        file = folder / "reward.json"
        file.write_text(json.dumps({"client": GOOD["client"], **content}), encoding="utf-8")
        (found,) = (stage for stage in load_reward_config(file).stages.values() if not isinstance(stage, str))
        assert found.calibration == str(folder / "calibration.json")
        assert found.rubric is not None
        assert f"{folder / 'calibration.json'}: cannot be read" in refusal(partial(rewarder, {**GOOD, "judge": found}, deadline=1.0))
        absolute = {"model": "judge-7b", "calibration": str(tmp_path / "other.json")}
        file.write_text(json.dumps({"client": GOOD["client"], "judge": absolute}), encoding="utf-8")
        assert load_reward_config(file).judge.calibration == str(tmp_path / "other.json")  # type: ignore[union-attr]


def test_a_cascade_comes_from_the_file_and_a_mistake_in_it_is_named_with_its_line(tmp_path: Path) -> None:
    wrong = []
    cases = (
        ("stages: [rm-7b, {model: judge-7b}]\n  min_confidence: 0.7", ""),
        ("stages: {quick: {model: judge-7b, samples: 3}, good: {model: judge-70b}}", ""),
        ("stages: [rm-7b]", r"line 3: cascade\.stages: must have at least 2"),
        ("stages:\n    - rm-7b\n    - {model: judge-7b, sacle: [1, 5]}", r"line 5: cascade\.stages\.1\.sacle: .* did you mean 'scale'"),
        ("stages: [rm-7b, 3]", r"cascade\.stages\.1: must be the settings of a judge, or the name of a reward model, not 3"),
        ("stages: rm-7b", r"cascade\.stages: must be a list of stages"),
        ("stages: [rm-7b, {model: judge-7b}]\n  min_confidence: high", r"cascade\.min_confidence: 'high' is not a number"),
        ("stages: [rm-7b, {model: judge-7b}]\n  min_confidence: 2", r"cascade: min_confidence of stage 'rm-7b' must be from 0 to 1"),
        ("stages: [rm-7b, {model: judge-7b, verdict: yesno}]", r"cascade\.stages\.1\.verdict: unknown verdict 'yesno'"),
        (
            "stages: [rm-7b, {model: judge-7b}]\n  confidence: {rm-8b: 'a:b'}",
            r"cascade: confidence: 'rm-8b' must be one of the stages before the last",
        ),
        ("stages: [rm-7b, {model: judge-7b}]\nreward_model: rm-7b", "set exactly one of judge"),
    )
    for number, (cascade, wanted) in enumerate(cases):
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"cascade:\n  # several\n  {cascade}\nclient:\n  endpoints: [{json.dumps(ENDPOINT)}]\n")
        said = refusal(partial(rewarder, file, deadline=1.0))
        if bool(said) != bool(wanted) or not re.search(wanted, said):
            wrong.append((cascade, said))
    assert wrong == []
    only_strong = {**GOOD["client"]["endpoints"][0], "models": ["judge-70b"]}
    settings = {"client": {"endpoints": [only_strong]}, "cascade": {"stages": [{"model": "judge-7b"}, {"model": "judge-70b"}]}}
    assert "cascade.stages.0.model: no endpoint of the client serves the model 'judge-7b'" in refusal(
        partial(rewarder, settings, deadline=1.0)
    )


def test_a_method_and_a_rubric_come_from_the_file_and_a_mistake_in_them_is_named_with_its_line(tmp_path: Path) -> None:
    criteria = tmp_path / "criteria.yaml"
    criteria.write_text("rubric:\n  right: It is right.\n  clear: {instructions: Is it clear, levels: [bad, good], weight: 2}\n")
    wrong = []
    cases = (
        (f"rubric: {criteria}", ""),
        ("rubric:\n    right: It is right.\n    clear: {instructions: Is it clear, levels: [bad, good], weight: 2}", ""),
        (
            "rubric:\n    - {name: right, instructions: x}\n    - {name: clear, weight: 2}",
            r"line 5: judge\.rubric\.1\.instructions \(of 'clear'\): is required",
        ),
        (f"rubric: {tmp_path / 'gone.yaml'}", r"line 3: judge\.rubric: .*gone\.yaml: cannot be read"),
        ("method: decides", r"line 3: judge\.method: must be .* did you mean 'decide'"),
        ("method: decide\n  scale: [0, 100]", r"judge: a decision needs a scale of at most 20 whole numbers"),
        ("method: decide\n  verdict: yes_no\n  params: {temperature: 0}", "judge: temperature has no effect with method='decide'"),
        ("method: decide\n  scale: [1, 5]\n  rubric: {a: x}", "judge: scale cannot be set together with rubric"),
    )
    for number, (judge, wanted) in enumerate(cases):
        file = tmp_path / f"{number}.yaml"  # rewarders are kept by their file
        file.write_text(f"judge:\n  model: judge-7b\n  {judge}\nclient:\n  endpoints: [{json.dumps(ENDPOINT)}]\n")
        said = refusal(partial(rewarder, file, deadline=1.0))
        if bool(said) != bool(wanted) or not re.search(wanted, said):
            wrong.append((judge, said))
    assert wrong == []
    rubric = load_reward_config({**GOOD, "judge": {"model": "judge-7b", "rubric": str(criteria)}}).judge.rubric  # type: ignore[union-attr]
    assert [(each.name, each.weight) for each in rubric.criteria] == [("right", 1.0), ("clear", 2.0)]  # type: ignore[union-attr]
