"""Reading a configuration: from a file, a mapping or the environment. A fault names the file and the place, never a secret."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from qreward import ConfigError, Endpoint, LoadBalanceStrategy, Retry, Route
from qreward.settings.client import OPENAI_BASE_URL, ClientConfig, config_from_env, load_config
from qreward.settings.files import _toml_line_of

SECRET = "sk-hush-7f3a"
GPU_0 = {"base_url": "http://gpu-0:8000/v1", "name": "gpu-0"}
GPU_1 = {"base_url": "http://gpu-1:8000/v1", "name": "gpu-1"}

YAML = """
endpoints:
  - base_url: http://gpu-0:8000/v1
    name: gpu-0
    api_key: ${JUDGE_KEY}
    models: [judge-*]
    limits: {max_concurrency: 64}
routes:
  judge-*: {endpoints: [gpu-0], strategy: round_robin}
retry: {attempts: 2}
timeout: 60
"""
JSON = json.dumps(
    {
        "endpoints": [{**GPU_0, "api_key": "${JUDGE_KEY}", "models": ["judge-*"], "limits": {"max_concurrency": 64}}],
        "routes": [{"pattern": "judge-*", "endpoints": ["gpu-0"], "strategy": "round_robin"}],
        "retry": {"attempts": 2},
        "timeout": 60,
    }
)
TOML = """
timeout = 60
[[endpoints]]
base_url = "http://gpu-0:8000/v1"
name = "gpu-0"
api_key = "${JUDGE_KEY}"
models = ["judge-*"]
limits = {max_concurrency = 64}
[routes."judge-*"]
endpoints = ["gpu-0"]
strategy = "round_robin"
[retry]
attempts = 2
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(name: str, text: str | bytes) -> str:
    Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    return str(caught.value)


def refusal_of(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config({"endpoints": [GPU_0, GPU_1], **settings})
    return str(caught.value)


def test_every_kind_of_file_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    endpoint = Endpoint("http://gpu-0:8000/v1", name="gpu-0", api_key=SECRET, models=("judge-*",), limits={"max_concurrency": 64})
    route = Route(pattern="judge-*", endpoints=("gpu-0",), strategy=LoadBalanceStrategy.ROUND_ROBIN)
    expected = ClientConfig(endpoints=(endpoint,), routes=(route,), retry=Retry(attempts=2), timeout=60)
    for name, text in (("q.yaml", YAML), ("q.YML", YAML), ("q.json", JSON), ("q.toml", TOML)):
        Path(name).write_text(text)
        assert load_config(name) == load_config(Path(name)) == expected, name
        Path(name).write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert load_config(name) == expected, f"{name} with a byte order mark"


def test_a_mapping_is_read_like_a_file_and_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    source = {"endpoints": [{**GPU_0, "api_key": "${JUDGE_KEY}"}]}
    key = load_config(source).endpoints[0].api_key
    assert key is not None
    assert key.get_secret_value() == SECRET
    assert source == {"endpoints": [{**GPU_0, "api_key": "${JUDGE_KEY}"}]}


def test_variables_are_replaced_in_every_text_however_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAMILY", "judge")
    monkeypatch.setenv("RPM", "600")
    config = load_config(
        {
            "endpoints": [{**GPU_0, "models": ["${FAMILY}-*"], "model_names": {"a": "${FAMILY}-7b"}, "limits": {"rpm": "${RPM}"}}],
            "routes": {"x-*": {"endpoints": ["gpu-0"], "strategy": "round_robin"}},
            "timeout": "${RPM}",
        }
    )
    assert config.endpoints[0].models == ("judge-*",)
    assert config.endpoints[0].model_names == {"a": "judge-7b"}
    assert config.endpoints[0].limits.rpm == 600
    assert config.timeout == 600


def test_what_is_not_said_has_its_default() -> None:
    config = load_config({"endpoints": [GPU_0]})
    assert config == ClientConfig(endpoints=(Endpoint(**GPU_0),))
    assert (config.routes, config.retry, config.timeout) == ((), Retry(), 600.0)
    assert load_config({"endpoints": [GPU_0], "timeout": None}).timeout is None


def test_yaml_anchors_and_merges_are_no_repeats() -> None:
    Path("q.yaml").write_text(
        "endpoints:\n  - &one {base_url: http://gpu-0:8000/v1, name: gpu-0, weight: 2}\n  - &two {<<: *one, name: gpu-1}\n"
        "  - {<<: *two, name: gpu-2}\n"
    )
    assert [(e.name, e.weight) for e in load_config("q.yaml").endpoints] == [("gpu-0", 2), ("gpu-1", 2), ("gpu-2", 2)]


WHOLE = f"endpoints:\n  - {{base_url: http://a, api_key: {SECRET}}}\n"
BROKEN: list[tuple[str, str, str | bytes, str]] = [
    (
        "unknown setting",
        "q.yaml",
        f"{WHOLE}  - {{base_url: http://b, limits: {{rpmm: 3}}}}",
        "endpoints.1.limits: unknown setting 'rpmm'; did",
    ),
    ("unknown setting at the top", "q.yaml", f"{WHOLE}route: {{}}", "unknown setting 'route'; did you mean 'routes'?"),
    ("wrong value", "q.toml", f'[[endpoints]]\nbase_url="ftp://x"\napi_key="{SECRET}"', "endpoints.0.base_url: must be an http://"),
    ("true for a duration", "q.yaml", f"{WHOLE}timeout: on", "timeout: must be a number of seconds, not true or false"),
    ("infinite duration", "q.yaml", f"{WHOLE}timeout: .inf", "timeout: must be a finite number of seconds, not inf"),
    (
        "duration that is no number",
        "q.json",
        f'{{"endpoints": [{{"base_url": "http://a", "api_key": "{SECRET}"}}], "timeout": NaN}}',
        "timeout: ",
    ),
    (
        "missing variable",
        "q.yaml",
        f"{WHOLE}  - {{base_url: 'http://${{NO_SUCH}}'}}",
        "endpoints.1.base_url: the environment variable NO_SUCH",
    ),
    (
        "missing variable in a list",
        "q.yaml",
        "endpoints: [{base_url: http://a, models: [x, '${NO_SUCH}']}]",
        "endpoints.0.models.1: the env",
    ),
    ("name that is not a text", "q.yaml", "endpoints: [{base_url: http://a, model_names: {4: b}}]", "endpoints.0.model_names.4: this name"),
    ("no endpoints", "q.yaml", "timeout: 3", "endpoints: is required"),
    ("empty endpoints", "q.yaml", "endpoints: []", "endpoints: must contain at least one"),
    ("endpoints that are none", "q.yaml", "endpoints:", "endpoints: must be a list"),
    ("empty file", "q.yaml", "", "is empty; it must contain at least 'endpoints'"),
    ("blank file", "q.json", " \n", "is empty"),
    ("only comments", "q.yaml", "# nothing yet\n", "is empty"),
    ("empty mapping", "q.json", "{}", "is empty"),
    ("list", "q.yaml", "- http://a", "must be a mapping with 'endpoints', not a list"),
    ("text", "q.json", f'"{SECRET}"', "must be a mapping with 'endpoints', not a str"),
    ("false", "q.yaml", "false", "must be a mapping with 'endpoints', not a bool"),
    ("YAML indented wrongly", "q.yaml", f"{WHOLE}   x: 3", "is not valid YAML: "),
    ("YAML with an unknown alias", "q.yaml", f"{WHOLE}retry: *{SECRET}", "line 3, column 8"),
    ("YAML with an unknown tag", "q.yaml", f"{WHOLE}retry: !{SECRET} x", "line 3, column 8"),
    ("YAML with a Python object", "q.yaml", "endpoints: !!python/object/apply:os.getcwd []", "line 1, column 12"),
    ("YAML with a control character", "q.yaml", WHOLE + "\x07", "a character that YAML does not allow"),
    ("YAML with a date that is none", "q.yaml", "endpoints: 2026-13-45", "a number or a date that cannot be read"),
    ("YAML that holds itself", "q.yaml", "endpoints: &a [*a]", "nested without end"),
    ("YAML with a name twice", "q.yaml", f"{WHOLE}timeout: 3\ntimeout: 4", "'timeout' occurs twice in the mapping of line 1"),
    ("YAML with a name twice inside", "q.yaml", f"{WHOLE}  - {{name: a,\n   name: b}}", "'name' occurs twice in the mapping of line 3"),
    ("JSON with a name twice", "q.json", '{"endpoints": [], "endpoints": []}', "'endpoints' occurs twice"),
    ("JSON with two commas", "q.json", '{"endpoints":\n [1,,]}', "is not valid JSON: Expecting value (line 2, column "),
    ("JSON nested without end", "q.json", "[" * 100_000, "is nested too deeply"),
    ("TOML with a name twice", "q.toml", "timeout = 3\ntimeout = 4\n", "is not valid TOML: Cannot overwrite a value (at line 2"),
    ("unknown kind of file", "q.ini", "x", "its name must end in .yaml, .yml, .json, .toml"),
    ("file that is not text", "q.json", b"\xff\xfe\x00", "is not UTF-8 text"),
]


def test_a_broken_file_is_refused_with_its_name_and_the_place() -> None:
    for case, name, text, said in BROKEN:
        message = refusal(name, text)
        assert re.match(rf"{re.escape(name)}(, line \d+)?: ", message), case
        assert said in message, case
        assert [words for words in (SECRET, "ClientConfig", "\n") if words in message] == [], case


FAULTS = {
    "q.yaml": """
retry: {attempts: 2}
timeout: 300s
endpoints:
  - &one
    base_url: http://gpu-0:8000/v1
    name: gpu-0
    api_key: $JUDGE_KEY
  - <<: *one
    name: gpu-1
    limits:
      rpmm: 3
routes:
  judge-*:
    endpoints: [gpu-0, gpu1]
    strategy: round-robin
""",
    "q.json": """{
 "retry": {"attempts": 2},
 "timeout": "300s",
 "x": ["}", "\\"{[,:", {}],
 "endpoints": [
  {"base_url": "http://gpu-0:8000/v1",
   "name": "gpu-0"},
  {"base_url": "http://gpu-1:8000/v1",
   "name": "gpu-1",
   "limits":
    {"rpm": 1,
     "rpmm": 3}}],
 "routes": {
  "judge-*": {"endpoints": ["gpu-0"],
   "strategy": "round-robin"}}
}""",
}


def test_the_line_of_a_setting_is_found_in_toml() -> None:
    text = """# a comment
timeout = 3
[retry]
attempts = 2
[[endpoints]]
base_url = "http://a"
name = '''
kind = 3
'''
[endpoints.limits]
"rpm" = 3
timeouts.read = 4
[[endpoints]]
limits = {rpm = 3}
models = [
  "a",
]
[routes."judge-*"]
endpoints = ["a"]
"""
    expected: dict[tuple[str | int, ...], int | None] = {
        ("timeout",): 2, ("retry", "attempts"): 4, ("retry", "cap"): 3, ("endpoints",): 5, ("endpoints", 0): 5,
        ("endpoints", 0, "base_url"): 6, ("endpoints", 0, "kind"): 5, ("endpoints", 0, "limits", "rpm"): 11,
        ("endpoints", 0, "limits", "timeouts", "read"): 12, ("endpoints", 1): 13, ("endpoints", 1, "limits", "rpm"): 14,
        ("endpoints", 1, "models", 0): 15, ("routes", "judge-*", "strategy"): 18, ("routes", "judge-*", "endpoints"): 19, ("x",): None,
    }  # fmt: skip
    assert {path: _toml_line_of(text, path) for path in expected} == expected


def test_each_fault_of_a_file_is_a_line_with_the_line_of_its_setting() -> None:
    assert refusal("q.yaml", FAULTS["q.yaml"]).splitlines() == [
        f"q.yaml, line 8: endpoints.{index}.api_key (of 'gpu-{index}'): looks like an environment variable but would be used as it is; "
        "write ${NAME}, or ${NAME:-default}"
        for index in (0, 1)
    ]
    strategies = "'expected_finish', 'round_robin', 'weighted_round_robin', 'least_connections', 'power_of_two' or 'consistent_hash'"
    assert refusal("q.yaml", FAULTS["q.yaml"].replace("$JUDGE_KEY", "key")).splitlines() == [
        "q.yaml, line 12: endpoints.1.limits (of 'gpu-1'): unknown setting 'rpmm'; did you mean 'rpm'?",
        f"q.yaml, line 16: routes.judge-*.strategy: must be {strategies}, not 'round-robin'; did you mean 'round_robin'?",
        "q.yaml, line 3: timeout: '300s' is not a number of seconds; write 300",
    ]
    assert refusal("q.json", FAULTS["q.json"]).splitlines() == [
        "q.json, line 12: endpoints.1.limits (of 'gpu-1'): unknown setting 'rpmm'; did you mean 'rpm'?",
        f"q.json, line 15: routes.judge-*.strategy: must be {strategies}, not 'round-robin'; did you mean 'round_robin'?",
        "q.json, line 3: timeout: '300s' is not a number of seconds; write 300",
        (
            "q.json, line 4: unknown setting 'x'; the settings are 'endpoints', 'hedge', 'max_queued', 'prefix_affinity', "
            "'retry', 'routes', 'timeout'"
        ),
    ]


def test_every_wrong_endpoint_of_the_routes_is_named_with_its_line() -> None:
    text = "endpoints: [{base_url: http://a, name: gpu-0}]\nroutes:\n  a: {endpoints: [gpu0]}\n  b:\n    endpoints: [gpu-0, far]\n"
    assert refusal("q.yaml", text).splitlines() == [
        "q.yaml, line 3: routes.a.endpoints: there is no endpoint 'gpu0'; did you mean 'gpu-0'?",
        "q.yaml, line 5: routes.b.endpoints: there is no endpoint 'far'; the endpoints are 'gpu-0'",
    ]


def test_a_file_that_is_not_there_and_a_folder_are_told_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^nowhere\.yaml: cannot be read: No such file"):
        load_config("nowhere.yaml")
    Path("folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"^folder\.yaml: cannot be read: "):
        load_config("folder.yaml")


def test_without_pyyaml_the_error_says_what_to_install_and_those_of_json_name_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "install qreward[yaml], or write the file as JSON or TOML" in refusal("q.yaml", YAML)
    assert refusal("q.json", FAULTS["q.json"]).splitlines()[2] == "q.json: timeout: '300s' is not a number of seconds; write 300"


def test_an_error_about_one_of_several_endpoints_gives_its_name(tmp_path: Path) -> None:
    api = {"base_url": "http://b/v1", "name": "api"}
    cases: list[tuple[Any, str]] = [
        ({**api, "api_key": "${NO_SUCH_VARIABLE}"}, "endpoints.1.api_key (of 'api'): the environment variable NO_SUCH_VARIABLE is not set"),
        ({**api, "limits": {"rpmm": 1}}, "endpoints.1.limits (of 'api'): unknown setting 'rpmm'"),
        ({**api, "kin": "vllm"}, "endpoints.1 ('api'): unknown setting 'kin'"),
        ({**api, "kind": "vlm"}, "endpoints.1.kind (of 'api'): must be 'openai', "),
        ({"name": "api"}, "endpoints.1.base_url (of 'api'): is required"),
        ({**api, "name": 3}, "endpoints.1.name: must be a string"),
        ({**api, "name": " api"}, "endpoints.1.name: "),
        ({"base_url": "http://b/v1", "kind": "vlm"}, "endpoints.1.kind: must be"),
        ([api], "endpoints.1: must be a mapping"),
    ]
    path = tmp_path / "fleet.json"
    for endpoint, message in cases:
        content = {"endpoints": [{"base_url": "http://a/v1", "name": "gpu-0"}, endpoint]}
        path.write_text(json.dumps(content))
        for source in (content, path):
            with pytest.raises(ConfigError) as raised:
                load_config(source)
            assert message in str(raised.value), message
            assert raised.value.faults[0][1].startswith(message), message


def test_endpoints_of_one_name_are_refused_and_the_error_shows_how_to_name_them() -> None:
    same = {"base_url": "http://gpu-0:8000/v1"}
    with pytest.raises(ConfigError, match=r"endpoints: more than one is called 'gpu-0:8000'; .* such as 'gpu-0:8000-b'"):
        load_config({"endpoints": [same, {"base_url": "http://gpu-0:8000/v2"}]})


def test_a_wrong_route_is_named_by_its_pattern_and_a_wrong_timeout_is_refused() -> None:
    mapping = "routes.j*: must be a mapping with endpoints, strategy and weights"
    unknown = "configuration: routes.j*.endpoints: there is no endpoint"
    route = {"pattern": "j*", "endpoints": ["gpu-0"]}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"routes": {"j*": {"endpoints": ["gpu-0", "gpu1"]}}}, f"{unknown} 'gpu1'; did you mean 'gpu-1'?"),
        ({"routes": {"j*": {"endpoints": ["far"]}}}, f"{unknown} 'far'; the endpoints are 'gpu-0', 'gpu-1'"),
        ({"routes": [route, route]}, "routes: more than one route has the pattern 'j*'"),
        (
            {"routes": {"j*": {"endpoints": ["gpu-0"], "strategyy": "x"}}},
            "routes.j*: unknown setting 'strategyy'; did you mean 'strategy'?",
        ),
        ({"routes": {"j*": {"endpoints": "gpu-0"}}}, "routes.j*.endpoints: must be a list, not a string"),
        *(({"routes": {"j*": body}}, mapping) for body in ({"endpoints": ["gpu-0"], "pattern": "k*"}, None, ["gpu-0"])),
        *(({"timeout": value}, "timeout: ") for value in (0, -1, float("nan"), float("inf"), True)),
    ]
    found = [(settings, message, refusal_of(**settings)) for settings, message in wrong]
    assert [each for each in found if each[1] not in each[2]] == []


def secretive() -> ClientConfig:
    return load_config({"endpoints": [{**GPU_0, "api_key": SECRET, "headers": {"X-Key": SECRET}, "proxy": f"http://u:{SECRET}@p"}]})


def test_a_configuration_never_shows_its_secrets() -> None:
    config = secretive()
    for shown in (repr(config), str(config), repr(config.model_dump()), config.model_dump_json()):
        assert SECRET not in shown


def test_pickling_a_configuration_keeps_its_secrets() -> None:
    there = pickle.loads(pickle.dumps(secretive()))
    assert there == secretive()
    assert there.endpoints[0].api_key.get_secret_value() == SECRET


def test_the_environment_may_name_a_file_which_wins_over_all_else() -> None:
    Path("q.json").write_text(json.dumps({"endpoints": [GPU_0]}))
    config = config_from_env({"QREWARD_CONFIG": "q.json", "OPENAI_BASE_URL": "http://other", "OPENAI_API_KEY": SECRET})
    assert [endpoint.name for endpoint in config.endpoints] == ["gpu-0"]


ENVIRONMENTS: list[tuple[dict[str, str], str, str | None]] = [
    ({"OPENAI_API_KEY": SECRET}, OPENAI_BASE_URL, SECRET),
    ({"OPENAI_API_KEY": SECRET, "OPENAI_BASE_URL": "http://a/v1"}, "http://a/v1", SECRET),
    ({"OPENAI_API_KEY": SECRET, "OPENAI_API_BASE": "http://b/v1"}, "http://b/v1", SECRET),
    ({"OPENAI_BASE_URL": "http://a/v1", "OPENAI_API_BASE": "http://b/v1"}, "http://a/v1", None),
    ({"OPENAI_BASE_URL": "", "OPENAI_API_BASE": "http://b/v1", "QREWARD_CONFIG": ""}, "http://b/v1", None),
]


def test_the_environment_may_name_one_endpoint() -> None:
    for environ, url, key in ENVIRONMENTS:
        (endpoint,) = config_from_env(environ).endpoints
        assert endpoint.base_url == url, environ
        assert (endpoint.api_key.get_secret_value() if endpoint.api_key else None) == key, environ


def test_the_environment_is_that_of_the_process_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OPENAI_BASE_URL", "http://gpu-0:8000/v1")
    assert config_from_env().endpoints[0].name == "gpu-0:8000"


def test_an_environment_that_names_nothing_is_told_what_may_be_set() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_env({"OPENAI_API_KEY": ""})
    for name in ("QREWARD_CONFIG", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"):
        assert name in str(caught.value)


def test_a_wrong_variable_is_named() -> None:
    for environ, said in (
        ({"OPENAI_BASE_URL": f"http://u:{SECRET}@a"}, "environment: OPENAI_BASE_URL: must not hold a user or password"),
        ({"OPENAI_API_BASE": "gpu-0:8000"}, "environment: OPENAI_API_BASE: must be an http:// or https:// URL"),
        ({"OPENAI_API_KEY": f"{SECRET}\n"}, "environment: OPENAI_API_KEY: the value"),
    ):
        with pytest.raises(ConfigError) as caught:
            config_from_env(environ)
        assert str(caught.value).startswith(said)
        assert SECRET not in str(caught.value)


def warnings_of(caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    caplog.clear()
    load_config(settings)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


GPU_2 = {"base_url": "http://gpu-2:8000/v1", "name": "gpu-2"}
ALONE = (
    "configuration: endpoint 'gpu-1': no route names it, so it gets only models that match no route; add it to a route, or set its models"
)
NEVER = "configuration: endpoint 'gpu-1': it gets no requests: the routes of its models do not name it; add it to a route"
TWICE = (
    "configuration: endpoint 'gpu-1': it is the same server as 'gpu-0' (the same base_url and key), so its limits count twice; remove one"
)
WEIGHT = "configuration: endpoint 'gpu-1': weight has no effect without a route whose strategy is weighted_round_robin or least_connections"
TO_0 = {"judge-*": {"endpoints": ["gpu-0"]}}
SAME = {**GPU_1, "base_url": GPU_0["base_url"]}
EFFECTS: list[tuple[str, list[dict[str, Any]], dict[str, Any], list[str]]] = [
    ("endpoints without routes", [GPU_0, GPU_1], {}, []),
    ("all endpoints in routes", [GPU_0, GPU_1], {"a": {"endpoints": ["gpu-0", "gpu-1"]}}, []),
    ("an endpoint that no route names", [GPU_0, GPU_1], TO_0, [ALONE]),
    ("an endpoint with models of its own", [GPU_0, {**GPU_1, "models": ["rm-*"]}], TO_0, []),
    ("an endpoint whose models go elsewhere", [GPU_0, {**GPU_1, "models": ["judge-*"]}], TO_0, [NEVER]),
    ("a weight that nothing uses", [GPU_0, {**GPU_1, "weight": 2}], {}, [WEIGHT]),
    (
        "a weight in a weighted route",
        [GPU_0, {**GPU_1, "weight": 2}],
        {"a": {"endpoints": ["gpu-0", "gpu-1"], "strategy": "least_connections"}},
        [],
    ),
    ("two names of one server", [GPU_0, SAME], {}, [TWICE]),
    ("two accounts at one server", [{**GPU_0, "api_key": "a"}, {**SAME, "api_key": "b"}], {}, []),
    ("two limits for two models of one server", [{**GPU_0, "models": ["a"]}, {**SAME, "models": ["b"]}], {}, []),
    (
        "two names of one server in a route",
        [{**GPU_0, "models": ["a"]}, {**SAME, "models": ["b"]}],
        {"c": {"endpoints": ["gpu-0", "gpu-1"]}},
        [TWICE],
    ),
]


def test_settings_without_effect_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {}
    for case, endpoints, routes, expected in EFFECTS:
        found = warnings_of(caplog, endpoints=endpoints, routes=routes)
        if found != expected:
            wrong[case] = found
    assert not wrong


def test_the_value_of_a_variable_is_taken_as_it_is_with_its_dollar_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "$ecret")
    monkeypatch.setenv("JUDGE_TOKEN", "${NO_SUCH}")
    path = tmp_path / "q.json"
    headers = {"X-Token": "${JUDGE_TOKEN}"}
    path.write_text(json.dumps({"endpoints": [{"base_url": "http://a/v1", "api_key": "${JUDGE_KEY}", "headers": headers}]}))
    (endpoint,) = load_config(path).endpoints
    assert endpoint.api_key is not None
    assert endpoint.api_key.get_secret_value() == "$ecret"
    assert endpoint.headers["X-Token"].get_secret_value() == "${NO_SUCH}"
    assert Endpoint("http://a/v1", api_key="${JUDGE_KEY}").api_key == endpoint.api_key
