"""Reading a configuration: from a file, a mapping or the environment. A fault names the file and the place, never a secret."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from qreward import ConfigError, Endpoint, LoadBalanceStrategy, Retry, Route
from qreward.settings.client import OPENAI_BASE_URL, ClientConfig, config_from_env, load_config

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


def test_a_mapping_is_left_as_it_was_and_its_variables_are_replaced_in_every_text_however_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JUDGE_KEY", "$ecret"), ("JUDGE_TOKEN", "${NO_SUCH}"), ("FAMILY", "judge"), ("RPM", "600")):
        monkeypatch.setenv(name, value)
    names = {"models": ["${FAMILY}-*"], "model_names": {"a": "${FAMILY}-7b"}, "limits": {"rpm": "${RPM}"}}
    source = {
        "endpoints": [{**GPU_0, **names, "api_key": "${JUDGE_KEY}", "headers": {"X-Token": "${JUDGE_TOKEN}"}}],
        "timeout": "${RPM}",
    }
    before = json.dumps(source)
    config = load_config(source)
    assert json.dumps(source) == before
    (found,) = config.endpoints
    assert (found.models, found.model_names, found.limits.rpm, config.timeout) == (("judge-*",), {"a": "judge-7b"}, 600, 600)
    assert found.api_key is not None
    values = (found.api_key.get_secret_value(), found.headers["X-Token"].get_secret_value())
    assert values == ("$ecret", "${NO_SUCH}"), "the value of a variable is taken as it is"


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
BROKEN: list[tuple[str, str | bytes, str]] = [
    ("q.yaml", f"{WHOLE}route: {{}}", "unknown setting 'route'; did you mean 'routes'?"),
    ("q.toml", f'[[endpoints]]\nbase_url="ftp://x"\napi_key="{SECRET}"', "endpoints.0.base_url: must be an http://"),
    ("q.yaml", f"{WHOLE}timeout: on", "timeout: must be a number, not true or false"),
    ("q.json", f'{{"endpoints": [{{"base_url": "http://a", "api_key": "{SECRET}"}}], "timeout": NaN}}', "timeout: must be a finite"),
    ("q.yaml", f"{WHOLE}  - {{base_url: 'http://${{NO_SUCH}}'}}", "endpoints.1.base_url: the environment variable NO_SUCH"),
    ("q.yaml", "endpoints: [{base_url: http://a, models: [x, '${NO_SUCH}']}]", "endpoints.0.models.1: the environment variable NO_SUCH"),
    ("q.yaml", "endpoints: [{base_url: http://a, model_names: {4: b}}]", "endpoints.0.model_names.4: this name is not a text"),
    ("q.yaml", "timeout: 3", "endpoints: is required"),
    (
        "q.yaml",
        f"{WHOLE}max_concurrency: 8",
        "endpoints=[Endpoint(limits=Limits(max_concurrency=...))], in a file endpoints.0.limits.max_con",
    ),
    ("q.yaml", f"{WHOLE}retries: 3", "it is part of retry: retry=Retry(attempts=...), in a file retry.attempts"),
    (
        "q.yaml",
        "endpoints:\n  - base_url:http://a",
        "endpoints.0: must be a valid mapping or instance of Endpoint, such as {base_url: ...}",
    ),
    ("q.yaml", f"{WHOLE}hedge: false", "hedge: must be a valid mapping or instance of Hedge, such as {quantile: ...}; null disables it"),
    ("q.yaml", "endpoints:\n  - base_url: http://a\n   name: x", "(line 3, column 4)"),
    ("q.yaml", "endpoints:\n\t- base_url: http://a", "(line 2, column 1)"),
    ("q.yaml", "endpoints: [\n", "is not valid YAML: "),
    ("q.yaml", 'endpoints:\n  - base_url: "http://a\n    name: x', "is not valid YAML: "),
    ("q.yaml", "endpoints: - base_url: http://a", "(line 1, column 12)"),
    ("q.yaml", "endpoints:\n  - base_url: @a", "(line 2, column 15)"),
    ("q.yaml", "endpoints:\n  - base_url: a: b", "mapping values are not allowed here (line 2, "),
    ("q.yaml", "endpoints: []", "endpoints: must contain at least one"),
    ("q.yaml", "endpoints:", "endpoints: must be a valid list"),
    ("q.yaml", "", "is empty; it must contain at least 'endpoints'"),
    ("q.json", " \n", "is empty"),
    ("q.yaml", "# nothing yet\n", "is empty"),
    ("q.json", "{}", "is empty"),
    ("q.yaml", "- http://a", "must be a mapping with 'endpoints', not a list"),
    ("q.json", f'"{SECRET}"', "must be a mapping with 'endpoints', not a str"),
    ("q.yaml", f"{WHOLE}   x: 3", "is not valid YAML: "),
    ("q.yaml", f"{WHOLE}retry: *{SECRET}", "line 3, column 8"),
    ("q.yaml", f"{WHOLE}retry: !{SECRET} x", "line 3, column 8"),
    ("q.yaml", "endpoints: !!python/object/apply:os.getcwd []", "line 1, column 12"),
    ("q.yaml", WHOLE + "\x07", "a character that YAML does not allow"),
    ("q.yaml", "endpoints: 2026-13-45", "a number or a date that cannot be read"),
    ("q.yaml", "endpoints: &a [*a]", "nested without end"),
    ("q.yaml", f"{WHOLE}timeout: 3\ntimeout: 4", "'timeout' occurs twice in the mapping of line 1"),
    ("q.yaml", f"{WHOLE}  - {{name: a,\n   name: b}}", "'name' occurs twice in the mapping of line 3"),
    ("q.json", '{"endpoints": [], "endpoints": []}', "'endpoints' occurs twice"),
    ("q.json", '{"endpoints":\n [1,,]}', "is not valid JSON: Expecting value (line 2, column "),
    ("q.json", "[" * 100_000, "is nested too deeply"),
    ("q.toml", "timeout = 3\ntimeout = 4\n", "is not valid TOML: Cannot overwrite a value (at line 2"),
    ("q.ini", "x", "its name must end in .yaml, .yml, .json, .toml"),
    ("q.json", b"\xff\xfe\x00", "is not UTF-8 text"),
]


def test_a_broken_file_is_refused_with_its_name_and_the_place() -> None:
    wrong = {}
    for name, text, said in BROKEN:
        message = refusal(name, text)
        begins = re.match(rf"{re.escape(name)}: ", message)
        if not begins or said not in message or any(words in message for words in (SECRET, "ClientConfig", "\n")):
            wrong[said] = message
    assert wrong == {}
    Path("folder.yaml").mkdir()
    for name, said in (("nowhere.yaml", "cannot be read: No such file"), ("folder.yaml", "cannot be read: ")):
        with pytest.raises(ConfigError, match=f"^{re.escape(name)}: {said}"):
            load_config(name)


YAML_WITH_FAULTS = """
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
"""
JSON_WITH_FAULTS = """{
 "timeout": "300s",
 "x": ["}", "\\"{[,:", {}],
 "endpoints": [
  {"base_url": "http://gpu-0:8000/v1",
   "limits":
    {"rpm": 1,
     "rpmm": 3}}],
 "routes": {
  "judge-*": {"endpoints": ["gpu-0"],
   "strategy": "round-robin"}}
}"""


def places(name: str, text: str) -> list[str]:
    """The setting of each fault."""
    return [line.removeprefix(f"{name}: ").rpartition(": ")[0] for line in refusal(name, text).splitlines()]


def test_each_fault_of_a_file_is_a_line_with_its_setting() -> None:
    assert refusal("q.yaml", YAML_WITH_FAULTS).splitlines() == [
        f"q.yaml: endpoints.{index}.api_key (of 'gpu-{index}'): looks like an environment variable but would be used as it is; "
        "write ${NAME}, or ${NAME:-default}"
        for index in (0, 1)
    ]
    expected = ["endpoints.1.limits (of 'gpu-1')", "routes.judge-*.strategy", "timeout"]
    assert places("q.yaml", YAML_WITH_FAULTS.replace("$JUDGE_KEY", "key")) == expected
    assert places("q.json", JSON_WITH_FAULTS) == ["endpoints.0.limits", "routes.judge-*.strategy", "timeout", ""]
    routes = "endpoints: [{base_url: http://a, name: gpu-0}]\nroutes:\n  a: {endpoints: [gpu0]}\n  b:\n    endpoints: [gpu-0, far]\n"
    assert places("q.yaml", routes) == ["routes.a.endpoints", "routes.b.endpoints"]


def test_without_pyyaml_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "install qreward[yaml], or write the file as JSON or TOML" in refusal("q.yaml", YAML)
    assert "q.json: timeout: must be a valid number, not '300s'" in refusal("q.json", JSON_WITH_FAULTS)


def test_an_error_about_one_of_several_endpoints_gives_its_name() -> None:
    api = {"base_url": "http://b/v1", "name": "api"}
    cases: list[tuple[Any, str]] = [
        ({**api, "api_key": "${NO_SUCH_VARIABLE}"}, "endpoints.1.api_key (of 'api'): the environment variable NO_SUCH_VARIABLE is not set"),
        ({**api, "limits": {"rpmm": 1}}, "endpoints.1.limits (of 'api'): unknown setting 'rpmm'"),
        ({**api, "kin": "vllm"}, "endpoints.1 ('api'): unknown setting 'kin'"),
        ({**api, "kind": "vlm"}, "endpoints.1.kind (of 'api'): must be 'openai', "),
        ({"name": "api"}, "endpoints.1.base_url (of 'api'): is required"),
        ({**api, "name": 3}, "endpoints.1.name: must be a valid string"),
        ({**api, "name": " api"}, "endpoints.1.name: "),
        ({"base_url": "http://b/v1", "kind": "vlm"}, "endpoints.1.kind: must be"),
        ([api], "endpoints.1: must be a valid mapping"),
    ]
    path = Path("fleet.json")
    for endpoint, message in cases:
        content = {"endpoints": [{"base_url": "http://a/v1", "name": "gpu-0"}, endpoint]}
        path.write_text(json.dumps(content))
        for source in (content, path):
            with pytest.raises(ConfigError) as raised:
                load_config(source)
            assert message in str(raised.value), message
            assert raised.value.faults[0][1].startswith(message), message


def test_endpoints_of_one_name_are_refused_and_the_error_shows_how_to_name_them() -> None:
    same = [{"base_url": "http://gpu-0:8000/v1"}, {"base_url": "http://gpu-0:8000/v2"}]
    assert re.search(r"endpoints: more than one is called 'gpu-0:8000'; .* such as 'gpu-0:8000-b'", refusal_of(endpoints=same))


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
        ({"routes": {"j*": {"endpoints": "gpu-0"}}}, "routes.j*.endpoints: must be a valid list"),
        *(({"routes": {"j*": body}}, mapping) for body in ({"endpoints": ["gpu-0"], "pattern": "k*"}, None, ["gpu-0"])),
        *(({"timeout": value}, "timeout: ") for value in (0, -1, float("nan"), float("inf"), True)),
    ]
    found = [(settings, message, refusal_of(**settings)) for settings, message in wrong]
    assert [each for each in found if each[1] not in each[2]] == []


def test_the_environment_names_a_file_which_wins_over_all_else_or_one_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    other, key = {"OPENAI_BASE_URL": "http://a/v1"}, {"OPENAI_API_KEY": SECRET}
    Path("q.json").write_text(json.dumps({"endpoints": [GPU_0]}))
    assert config_from_env({"QREWARD_CONFIG": "q.json", **other, **key}) == load_config("q.json")
    cases: list[tuple[dict[str, str], str, str | None]] = [
        (key, OPENAI_BASE_URL, SECRET),
        ({**key, **other}, "http://a/v1", SECRET),
        ({**key, "OPENAI_API_BASE": "http://b/v1"}, "http://b/v1", SECRET),
        ({**other, "OPENAI_API_BASE": "http://b/v1"}, "http://a/v1", None),
        ({"OPENAI_BASE_URL": "", "OPENAI_API_BASE": "http://b/v1", "QREWARD_CONFIG": ""}, "http://b/v1", None),
    ]
    for environ, url, secret in cases:
        assert config_from_env(environ).endpoints == (Endpoint(url, api_key=secret),), environ
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gpu-0:8000/v1")
    assert config_from_env().endpoints[0].name == "gpu-0:8000"


def test_an_environment_that_names_nothing_or_something_wrong_is_told_the_variables() -> None:
    cases = {
        "QREWARD_CONFIG OPENAI_BASE_URL OPENAI_API_BASE OPENAI_API_KEY": {"OPENAI_API_KEY": ""},
        "OPENAI_BASE_URL: must_not_hold_a_user": {"OPENAI_BASE_URL": f"http://u:{SECRET}@a"},
        "OPENAI_API_BASE: must_be_an_http://": {"OPENAI_API_BASE": "gpu-0:8000"},
        "OPENAI_API_KEY: value": {"OPENAI_API_KEY": f"{SECRET}\n"},
    }
    for said, environ in cases.items():
        with pytest.raises(ConfigError) as caught:
            config_from_env(environ)
        message = str(caught.value)
        assert [words for words in said.split() if words.replace("_", " ") not in message.replace("_", " ")] == [], message
        assert SECRET not in message


def warnings_of(caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    caplog.clear()
    load_config(settings)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


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
BOTH = ["gpu-0", "gpu-1"]
EFFECTS: list[tuple[list[dict[str, Any]], dict[str, Any], list[str]]] = [
    ([GPU_0, GPU_1], {}, []),
    ([GPU_0, GPU_1], {"a": {"endpoints": BOTH}}, []),
    ([GPU_0, GPU_1], TO_0, [ALONE]),
    ([GPU_0, {**GPU_1, "models": ["rm-*"]}], TO_0, []),
    ([GPU_0, {**GPU_1, "models": ["judge-*"]}], TO_0, [NEVER]),
    ([GPU_0, {**GPU_1, "models": ["judge-*", "x"]}], TO_0, []),
    ([GPU_0, {**GPU_1, "weight": 2}], {}, [WEIGHT]),
    ([GPU_0, {**GPU_1, "weight": 2}], {"a": {"endpoints": BOTH}}, [WEIGHT]),
    ([GPU_0, {**GPU_1, "weight": 2}], {"a": {"endpoints": BOTH, "strategy": "least_connections"}}, []),
    ([GPU_0, SAME], {}, [TWICE]),
    ([{**GPU_0, "api_key": "a"}, {**SAME, "api_key": "b"}], {}, []),  # two accounts
    ([{**GPU_0, "models": ["a"]}, {**SAME, "models": ["b"]}], {}, []),  # limits for two models of one server
    ([{**GPU_0, "models": ["a"]}, {**SAME, "models": ["b"]}], {"c": {"endpoints": BOTH}}, [TWICE]),
    ([{**GPU_0, "models": ["a"]}, {**SAME, "models": ["b", "a"]}], {}, [TWICE]),
]


def test_settings_without_effect_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    for endpoints, routes, expected in EFFECTS:
        assert warnings_of(caplog, endpoints=endpoints, routes=routes) == expected, (endpoints, routes)
