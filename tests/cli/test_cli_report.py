"""``qreward check --report``: it tells versions, settings and endpoints as they are, and never a value that may be secret."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from qreward.cli import main
from qreward.testing import FakeEndpoint, FakeFleet

SECRETS = ("sk-right-key-1234567", "correct-horse", "hunter2", "battery staple", "tok/en+=%40")
KEY, PASSWORD, SHORT, BLANKS, ODD = SECRETS
ACCOUNT = f"{SHORT}:{PASSWORD}@"


class Doctor:
    """Runs the command in a folder of its own, and reads what it says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def file(self, text: str | dict[str, Any], name: str = "fleet.json") -> str:
        path = self.folder / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return str(path)

    def __call__(self, *options: str) -> tuple[int, str]:
        status = main(["check", "--report", "--timeout", "20", *options])
        said = self._capsys.readouterr()
        assert said.err == ""
        assert not [secret for secret in SECRETS if secret in said.out], said.out
        return status, said.out

    def json(self, *options: str) -> tuple[int, dict[str, Any]]:
        status, said = self("--json", *options)
        return status, json.loads(said)


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(tmp_path, capsys)


def test_it_tells_the_versions_of_all_packages_and_which_are_missing(report: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_tqdm(name: str) -> str:
        if name == "tqdm":
            raise metadata.PackageNotFoundError
        return version(name)

    monkeypatch.setattr(metadata, "version", without_tqdm)
    status, found = report.json()
    assert (status, found["endpoints"], found["settings"]) == (0, [], None)
    core = ("aiohttp", "httpx", "msgspec", "openai", "opentelemetry-api", "pydantic", "pyyaml")
    assert {**found["versions"], **{name: version(name) for name in core}} == found["versions"]
    assert (found["versions"]["qreward"], found["versions"]["python"]) == (version("qreward"), platform.python_version())
    assert found["versions"]["tqdm"] is None
    assert not found["versions"].keys() & {"ruff", "mypy", "pytest"}
    _, said = report()
    assert re.search(r"^no packages .*\btqdm", said, flags=re.MULTILINE)
    assert f"pyyaml {version('pyyaml')}" in said
    assert "none found; `qreward init` writes a file" in said


def test_settings_are_told_with_their_place_in_the_order_in_which_they_count(report: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeFleet([FakeEndpoint("a", models=["m"]), FakeEndpoint("b")]) as fleet:
        monkeypatch.setenv("HTTP_PROXY", "")
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setenv("OPENAI_BASE_URL", fleet.urls["b"])
        assert report.json()[1]["settings"] == "OPENAI_BASE_URL"
        monkeypatch.setenv("QREWARD_CONFIG", report.file({"endpoints": [{"base_url": "${A_URL}", "name": "${A_NAME:-a}"}]}))
        monkeypatch.setenv("A_URL", fleet.urls["a"])
        status, found = report.json()
        _, said = report()
        file = report.file({"endpoints": [{"base_url": fleet.urls["b"]}]}, "b.json")
        assert report.json(file)[1]["settings"] == file
    assert (status, found["problems"], found["settings"]) == (0, [], os.environ["QREWARD_CONFIG"])
    assert [name for name, is_set in found["environment"].items() if is_set] == ["QREWARD_CONFIG", "OPENAI_BASE_URL", "NO_PROXY"]
    assert [(each["name"], each["models"], each["latency"] > 0) for each in found["endpoints"]] == [("a", ["m"], True)]
    assert said.splitlines()[-1] == "all is well"


def test_a_file_in_the_working_directory_is_not_used_by_any_command_and_named_by_those_that_need_one(
    report: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(report.folder)
    report.file("this is read by no command", "qreward.toml")
    assert report()[0] == 0
    for command in (["check"], ["run", "qreward.toml", "--output", "out.jsonl"]):
        assert main(command) == 2
        assert "set QREWARD_CONFIG to qreward.toml, which is in the working directory, or OPENAI_BASE_URL" in capsys.readouterr().err


def test_a_trainers_file_is_checked_if_it_is_named_and_refused_where_a_client_would_refuse_it(
    report: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeFleet([FakeEndpoint("a", models=["judge-7b"])]) as fleet:
        client = {"endpoints": [{"base_url": fleet.urls["a"], "proxy": ""}]}
        file = report.file({"client": client, "judge": {"model": "judge-8b"}})
        status, found = report.json(file)
        assert status == 1
        assert "does not serve 'judge-8b'" in found["endpoints"][0]["problems"][0]
        file = report.file({"client": client, "judge": {"model": "judge-7b"}})
        assert report(file)[0] == 0
    monkeypatch.setenv("QREWARD_CONFIG", file)
    status, found = report.json()
    assert status == 1
    assert "unknown setting 'client'" in found["problems"][0]


def test_settings_that_are_wrong_and_endpoints_that_are_down_are_problems_and_the_rest_is_told(report: Doctor) -> None:
    status, found = report.json(report.file({"endpoints": [{"base_url": "http://gpu-0:8000/v1", "api_key": "${NO_SUCH_KEY}"}]}))
    assert status == 1
    assert "the environment variable NO_SUCH_KEY is not set" in found["problems"][0]
    assert found["versions"]["aiohttp"]
    status, found = report.json(report.file({"endpoints": [{"base_url": "http://127.0.0.1:9/v1", "proxy": ""}]}))
    assert (status, found["problems"], found["endpoints"][0]["reachable"]) == (1, [], False)
    for file, words in (("nowhere.json", "cannot be read: No such file"), (report.file("a: [", "broken.yaml"), "is not valid YAML")):
        status, said = report(file)
        assert status == 1
        assert words in said


def test_more_connections_than_files_may_be_open_are_a_problem(report: Doctor) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        file = report.file({"endpoints": [{"base_url": fleet.urls["a"], "proxy": "", "limits": {"max_concurrency": soft}}]})
        status, found = report.json(file)
    assert (status, found["open_files"]) == (1, soft)
    assert found["problems"][0].startswith(f"the settings allow {soft} concurrent requests, but the process may open only {soft} files")
    assert found["endpoints"][0]["problems"] == []


def test_no_secret_is_shown_wherever_it_stands(report: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QREWARD_SERVE_TOKEN", "OPENAI_API_KEY", "MY_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("QREWARD_REWARD", f"/tmp/{PASSWORD}.yaml")
    proxy = f"http://{ACCOUNT}127.0.0.1:9"
    for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    with FakeFleet([FakeEndpoint("a", api_key=ODD)]) as fleet:
        url = fleet.urls["a"]
        headers = {"Authorization": f"Basic {PASSWORD}", "X-Api-Key": BLANKS}
        files: tuple[dict[str, Any], ...] = (
            {"base_url": url, "api_key": "${MY_KEY}", "headers": headers, "proxy": ""},
            {"base_url": url, "api_key": KEY, "headers": {"X": ODD}},
            {"base_url": url, "proxy": proxy},
            {"base_url": url.replace("//", f"//{ACCOUNT}")},
            {"base_url": f"{url}?key={KEY}"},
            {"base_url": url, "api_key": f"{KEY}\n"},
            {"base_url": url, "headers": {f"X-Key: {PASSWORD}": SHORT}},
            {"base_url": url, "api_key": [KEY], "headers": PASSWORD, "proxy": {"url": proxy}, "limits": {"rpm": KEY}},
            {"base_url": url, "api_key": f"${KEY}"},
            {"base_url": url, "api_key": f"${{NO_SUCH_KEY:-{KEY}}}", "proxy": ""},
        )
        for endpoint in files:
            file = report.file({"endpoints": [endpoint]})
            for options in ((), ("--json",)):
                report(*options, file)
    report(report.file({"endpoints": [{"base_url": "http://127.0.0.1:9/v1", "proxy": proxy}]}))
    for text in (f"api_key: {KEY}: {PASSWORD}", f"'{PASSWORD}", f'{{"api_key": "{KEY}" "{PASSWORD}"}}'):
        report(report.file(text, "broken.yaml"))
        report(report.file(text, "broken.json"))
    report(f"https://{ACCOUNT}host/v1")
    for name, value in (("OPENAI_BASE_URL", f"https://{ACCOUNT}host/v1"), ("OPENAI_API_KEY", f"{KEY}\n")):
        monkeypatch.setenv(name, value)
        status, said = report()
        assert status == 1
        assert "HTTP_PROXY set, HTTPS_PROXY set, ALL_PROXY set, NO_PROXY not set" in said
        assert "QREWARD_SERVE_TOKEN set" in said
