"""Who may come in, and what is never shown: tokens, hosts, settings from the environment and the command line."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from server_tools import Lengths, served
from shared_tools import each

from qreward.callables import load_object
from qreward.cli import main
from qreward.errors import ConfigError
from qreward.server import ServerConfig, create_app
from qreward.server.app import check_caller
from qreward.server.bodies import HTTPError
from qreward.server.config import helps, token_of

TOKEN = "tok-hidden-1"
BODY = {"query": ["a"]}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "server.md"


async def test_without_the_token_nothing_but_the_health_is_served_and_with_it_everything() -> None:
    scorer, wrong = Lengths(), []
    async with served(scorer, token=TOKEN) as server:
        for given in ("", "Bearer", "Bearer tok-hidden-2", "Bearer tok-hidden-1x", "Basic tok-hidden-1", "tok-hidden-1"):
            answers = [await server.post("/get_reward", BODY, authorization=given)]
            for path in ("/get_reward", "/classify", "/metrics", "/v1/models", "/nowhere"):
                answers.append(await server.client.get(path, headers={"authorization": given}))
            for answer in answers:
                if (answer.status_code, answer.headers["www-authenticate"]) != (401, "Bearer") or TOKEN in answer.text:
                    wrong.append((given, answer.request.method, answer.url, answer.status_code))
        assert wrong == []
        assert (await server.client.get("/health")).status_code == 200
        assert scorer.batches == []
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert (await server.post("/get_reward", BODY, authorization=f"{scheme} {TOKEN}")).status_code == 200
            assert (await server.client.get("/metrics", headers={"authorization": f"{scheme} {TOKEN}"})).status_code == 200


def test_only_a_host_that_others_reach_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.5", "gpu-0", ""):
        with pytest.raises(ConfigError, match=r"can be reached from other machines; set a token .* --token-env NAME"):
            ServerConfig(host=host)
        assert ServerConfig(host=host, token=TOKEN).host == host  # type: ignore[arg-type]
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert ServerConfig(host=host).token is None


def test_an_app_without_a_token_that_somebody_serves_to_all_refuses_all() -> None:
    for server in (("10.0.0.5", 80), ("fd00::1", 80)):
        with pytest.raises(HTTPError) as refused:
            check_caller({"server": server, "headers": []}, ServerConfig())
        assert refused.value.status == 403
    for local in (("127.0.0.1", 80), ("::1", 80), ("/run/reward.sock", None), None):
        check_caller({"server": local, "headers": []}, ServerConfig())


@each(
    "wrong",
    [
        *({"token": token} for token in ("", " ", "a b", "tok\n", "tök", "tok\x00")),
        {"port": 65536},
        {"max_queue": 0},
        {"rate": 0},
        {"mode": "both"},
        {"max_items": 9, "max_queue": 8},
        {"max_pending_bytes": 1},
        {"prot": 1},
    ],
)
def test_wrong_settings_are_refused_and_a_token_is_not_shown(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        create_app(Lengths(), **wrong)
    token = wrong.get("token", "")
    assert not token.strip() or token not in str(error.value)


async def test_no_secret_is_shown_or_logged(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(Lengths(), token=TOKEN) as server:
        await server.post("/get_reward", {"query": ["poison"]}, authorization=f"Bearer {TOKEN}")
        await server.post("/get_reward", BODY, authorization="Bearer other-secret")
    config = ServerConfig(token=TOKEN)  # type: ignore[arg-type]
    shown = [repr(config), str(config), config.model_dump_json(), caplog.text, *capsys.readouterr()]
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpcore", "httpx"))]
    assert "the scorer failed on a batch of 1: ValueError: poison was found" in ours
    assert not any(TOKEN in text for text in shown[:3])
    assert not any(TOKEN in text or "other-secret" in text for text in ours)


def test_the_token_comes_from_a_variable_or_a_file_and_never_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, empty = tmp_path / "token", tmp_path / "empty"
    file.write_text(f"{TOKEN}\n")
    empty.write_text("\n")
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    assert token_of("MY_TOKEN", None) == token_of(None, str(file)) == TOKEN
    assert token_of(None, None) is None
    wrong = [("MY_TOKEN", str(file)), ("NOT_SET", None), (None, str(empty)), (None, str(tmp_path / "none")), (None, str(tmp_path))]
    for variable, path in wrong:
        with pytest.raises(ConfigError) as error:
            token_of(variable, path)
        assert TOKEN not in str(error.value)
    with pytest.raises(SystemExit):
        main(["serve", "m:f", "--token", TOKEN])
    capsys.readouterr()


def test_each_setting_comes_from_the_environment_and_the_command_line_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"PORT": "8080", "MODE": "batch", "ISOLATE_ERRORS": "false", "TIMEOUT": "none", "TOKEN": TOKEN, "RATE": ""}.items():
        monkeypatch.setenv(f"QREWARD_SERVE_{name}", text)
    for name in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT_5000_TCP"):  # of a service with that name in Kubernetes
        monkeypatch.setenv(f"QREWARD_SERVE_{name}", "10.0.0.1")
    config = ServerConfig.from_env()
    assert (config.port, config.mode, config.isolate_errors, config.timeout, config.rate) == (8080, "batch", False, None, None)
    assert config.token is not None
    assert config.token.get_secret_value() == TOKEN
    assert ServerConfig.from_env(port="9090", host="0.0.0.0").port == 9090
    for token in ("$ecret", "a${NO_SUCH}"):
        monkeypatch.setenv("QREWARD_SERVE_TOKEN", token)
        for given in ({}, {"token": token}):
            found = ServerConfig.from_env(**given).token
            assert found is not None
            assert found.get_secret_value() == token, "the value of a variable, and the content of a file, is taken as it is"
    monkeypatch.setenv("QREWARD_SERVE_PORT", "tcp://10.0.0.1:5000")
    assert ServerConfig.from_env().port == ServerConfig().port
    monkeypatch.setenv("QREWARD_SERVE_PROT", "1")
    with pytest.raises(ConfigError, match=r"^QREWARD_SERVE_PROT: unknown setting 'prot'; did you mean 'port'"):
        ServerConfig.from_env()
    monkeypatch.delenv("QREWARD_SERVE_PROT")
    monkeypatch.setenv("QREWARD_SERVE_PORT", "abc")
    for given, said in (({}, "^QREWARD_SERVE_PORT: port: must be"), ({"port": "x"}, "^port: must be"), ({"rate": "0"}, "\nrate: must be")):
        with pytest.raises(ConfigError, match=said):
            ServerConfig.from_env(**given)


def test_the_help_and_the_page_have_words_for_each_setting_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(helps()) == set(ServerConfig.model_fields)
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in said for name in ServerConfig.model_fields if name != "token")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    settings = {row[0].strip("`"): row[1] for row in rows if len(row) == 4 and row[0].strip("`") in ServerConfig.model_fields}
    assert settings == {name: f"`{json.dumps(field.default)}`" for name, field in ServerConfig.model_fields.items()}


def test_a_scorer_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scorers.py").write_text("class Holder:\n    score = staticmethod(len)\n")
    (tmp_path / "needs_more.py").write_text("import no_such_package\n")
    (tmp_path / "broken_scorer.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_object("my_scorers:Holder.score", "scorer", "my_rewards:score") is len
    for name, words in {
        "my_scorers": "is not written as module:function",
        "my_scorers:": "is not written as module:function",
        "my_scorers:nothing": "has no 'nothing'",
        "no_such_module:f": "there is no module 'no_such_module'",
        "needs_more:f": "needs the module 'no_such_package'",
        "broken_scorer:f": "ZeroDivisionError",
    }.items():
        with pytest.raises(ConfigError, match=words):
            load_object(name, "scorer", "my_rewards:score")


def test_a_mistake_on_the_command_line_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        mistakes = [
            (["json:nothing"], "scorer 'json:nothing': 'json' has no 'nothing'; correct the name, or define it there"),
            (["json:dump5"], "'json' has no 'dump5'; did you mean 'dump'?"),
            (["json:JSONDecoder"], "give an instance"),
            (["json:dumps", "--host", "0.0.0.0"], "set a token (on the command line with --token-env NAME or --token-file PATH)"),
            (["json:dumps", "--port", "many"], "port: "),
            (["json:dumps", "--port", str(taken.getsockname()[1])], "choose another port"),
            (["json:dumps", "--token-env", "NOT_SET"], "NOT_SET"),
            (["json:dumps", "--token-file", "nowhere"], "the file named by --token-file cannot be read: No such file or directory"),
        ]
        for args, words in mistakes:
            assert main(["serve", *args]) == 2
            said = capsys.readouterr().err
            assert words in said, args
            assert said.startswith("qreward serve: ")
            assert "ServerConfig" not in said
