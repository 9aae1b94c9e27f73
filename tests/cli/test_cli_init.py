"""``qreward init``: what it writes is read by the real settings, shows every example that it offers, and never holds a key."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from qreward.cli import main
from qreward.integrations.trainers.settings import load_reward_config
from qreward.settings.client import read_config

GPU, API = "http://gpu-0:8000/v1", "https://api.example.com/v1"
KEY = "sk-right-key-1234567"
OPTIONS: list[tuple[str, ...]] = [
    ("--endpoint", GPU),
    ("--endpoint", "${MY_URL}"),
    ("--endpoint", GPU, "--endpoint", API),
    ("--endpoint", API, "--judge", "judge-7b"),
    ("--endpoint", "http://gpu-0/<key>/v1", "--judge", "<client>"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, value in (("MY_KEY", KEY), ("MY_URL", GPU), ("JUDGE_KEY", KEY), ("NO_PROXY", "*")):
        monkeypatch.setenv(name, value)
    return tmp_path


def uncommented(text: str) -> str:
    """The text with every example in use: the settings that are comments."""
    return re.sub(r"^( *(?:- )?)# (\w+(?: =|:) )", r"\1\2", re.sub(r"\A(#.*\n)+", "", text), flags=re.MULTILINE)


def test_what_is_written_is_read_by_the_settings_with_and_without_its_examples(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")  # the file that a judge's file names is beside it
    for options in OPTIONS:
        path, second = folder / "fleet.toml", folder / "judge.toml"
        assert main(["init", str(path), *options, "--force"]) == 0, options
        said = capsys.readouterr().out
        assert f"qreward check {path}" in said
        texts = [path.read_text(encoding="utf-8")]
        config, _ = read_config(path)
        if "--judge" in options:
            texts.append(second.read_text(encoding="utf-8"))
            assert load_reward_config(second).client == config  # from another folder than its own
        assert KEY not in "".join([*texts, said])
        path.write_text(uncommented(texts[0]), encoding="utf-8")
        assert read_config(path)[0].endpoints[0].price == (0.15, 0.6)
        for text in texts[1:]:
            second.write_text(uncommented(text), encoding="utf-8")
            everything = load_reward_config(second)
            assert (everything.judge and everything.judge.samples, everything.deadline) == (3, 60)


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("fleet.ini", "--endpoint", GPU), "fleet.ini: its name must end in .toml"),
    (("there.toml", "--endpoint", GPU), "there.toml exists; name another file, or replace it with --force"),
    (("there.toml", "--judge", "judge-7b"), "there.toml: is not valid TOML"),
    (("no/fleet.toml", "--endpoint", GPU), "there is no folder 'no'"),
    (("--endpoint", "gpu-0:8000"), "endpoints.0.base_url: must be an http:// or https:// URL"),
    (("--endpoint", f"{GPU}/chat/completions"), "without /chat/completions"),
    (("--endpoint", f"https://user:{KEY}@host/v1"), "must not hold a user or password"),
    (("--endpoint", f"https://host/v1?key={KEY}"), "must not hold a query"),
    (("--endpoint", GPU, "--endpoint", GPU), "more than one is called 'gpu-0:8000'"),
    (("--endpoint", GPU, "--judge", "judge-*"), "--judge must be the name of one model"),
]


def test_what_is_wrong_is_refused_before_anything_is_written_and_no_key_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "there.toml").write_text("mine")
    for options, words in REFUSED:
        assert main(["init", *options]) == 2, options
        said = capsys.readouterr()
        assert words in said.err, (options, said.err)
        assert said.out == ""
        assert KEY not in said.err
    assert [path.name for path in folder.iterdir()] == ["there.toml"]
    assert (folder / "there.toml").read_text() == "mine"


def test_a_judge_is_added_beside_a_configuration_file_that_is_kept_with_its_comments(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--endpoint", GPU, "--endpoint", API]) == 0
    written = folder / "qreward.toml"
    (folder / "qreward.json").write_text(json.dumps(tomllib.loads(written.read_text())))
    for path in (written, folder / "qreward.json"):
        kept = path.read_text() + ("" if path.suffix == ".json" else "# mine\n")
        path.write_text(kept)
        capsys.readouterr()
        given = () if path is written else (str(path),)  # the usual name need not be given
        assert main(["init", *given, "--judge", "judge-7b", "--force"]) == 0
        assert f"written  {'' if not given else f'{folder}/'}judge.toml" in capsys.readouterr().out
        assert path.read_text() == kept
        scorer = load_reward_config(folder / "judge.toml")
        assert (scorer.models, scorer.client and len(scorer.client.endpoints)) == (("judge-7b",), 2)
    assert main(["init", "--judge", "gpt-4"]) == 2
    assert "judge.toml exists; name another file" in capsys.readouterr().err
    (folder / "other.toml").write_text("[judge]\nmodel = 'm'\n")
    assert main(["init", "other.toml", "--judge", "judge-7b", "--force"]) == 2
    assert "other.toml: is not a configuration file of a client" in capsys.readouterr().err


def test_the_page_shows_what_the_command_writes(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/get-started/configuration.md").read_text()
    blocks = re.findall(r"^```(bash|text|toml|yaml)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    command, shown, written = (text for _, text in blocks[1:4])
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == shown
    assert (folder / "qreward.toml").read_text() == written
    (folder / "same.yaml").write_text(blocks[4][1])
    monkeypatch.setenv("API_KEY", KEY)
    assert len(read_config(folder / "same.yaml")[0].endpoints) == 2


def test_without_an_endpoint_the_file_has_that_of_the_environment_or_an_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["init", "example.toml"]) == 0
    monkeypatch.setenv("OPENAI_BASE_URL", API)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert main(["init", "own.toml", "--judge", "judge-7b"]) == 0
    (example,), (own,) = (read_config(folder / name)[0].endpoints for name in ("example.toml", "own.toml"))
    assert (example.base_url, example.api_key, own.base_url) == (GPU, None, API)
    assert KEY not in (folder / "own.toml").read_text()
    assert load_reward_config(folder / "judge.toml").models == ("judge-7b",)
    monkeypatch.setattr(sys, "stdout", None)  # as for a process that is started with a closed standard output
    assert main(["init", "closed.toml"]) == 0
