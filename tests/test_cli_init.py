"""``qreward init``: what it writes is read by the real settings, shows every example that it offers, and never holds a key."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from qreward.cli import init, main
from qreward.integrations.trainers.settings import load_reward_config
from qreward.settings.client import read_config
from qreward.settings.policies import SERVER_KINDS

GPU, API = "http://gpu-0:8000/v1", "https://api.example.com/v1"
KEY = "sk-right-key-1234567"
FLEET = ("--endpoint", GPU, "--name", "gpu-0", "--kind", "vllm", "--model", "judge-*", "--model", "embed-1", "--max-concurrency", "64")
PAID = ("--endpoint", API, "--key-variable", "MY_KEY", "--rpm", "600", "--tpm", "200000", "--model", "judge-7b")
OPTIONS: list[tuple[str, ...]] = [
    ("--endpoint", GPU),
    ("--endpoint", GPU, "--key-variable", "${MY_KEY}", "--timeout", "30"),
    ("--endpoint", "${MY_URL}", "--name", 'a "name" \\ with # signs: ü'),
    FLEET,
    (*FLEET, *PAID),
    (*PAID, "--judge", "judge-7b"),
    (*FLEET, *PAID, "--judge", "judge-70b"),
    *((*FLEET, "--judge", "judge-7b", "--trainer", trainer) for trainer in init.TRAINERS),
    *(("--endpoint", GPU, "--kind", kind) for kind in SERVER_KINDS),
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
        path, second = folder / "fleet.toml", folder / f"{'reward' if '--trainer' in options else 'judge'}.toml"
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


def test_the_options_after_an_endpoint_are_those_of_that_endpoint(folder: Path) -> None:
    assert main(["init", "fleet.toml", *FLEET, *PAID, "--timeout", "30"]) == 0
    config, _ = read_config(folder / "fleet.toml")
    gpu, api = config.endpoints
    assert (gpu.name, gpu.base_url, gpu.kind, gpu.models, gpu.api_key) == ("gpu-0", GPU, "vllm", ("judge-*", "embed-1"), None)
    assert (gpu.limits.max_concurrency, gpu.limits.rpm, config.timeout) == (64, None, 30)
    assert (api.base_url, api.models, api.limits.rpm, api.limits.tpm) == (API, ("judge-7b",), 600, 200000)
    assert api.api_key is not None
    assert api.api_key.get_secret_value() == KEY


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("fleet.ini", "--endpoint", GPU), "fleet.ini: its name must end in .toml"),
    (("there.toml", "--endpoint", GPU), "there.toml exists; name another file, or replace it with --force"),
    (("there.toml", "--judge", "judge-7b"), "there.toml: is not valid TOML"),
    (("no/fleet.toml", "--endpoint", GPU), "there is no folder 'no'"),
    (("--endpoint", "gpu-0:8000"), "endpoints.0.base_url: must be an http:// or https:// URL"),
    (("--endpoint", f"{GPU}/chat/completions"), "without /chat/completions"),
    (("--endpoint", f"https://user:{KEY}@host/v1"), "must not hold a user or password"),
    (("--endpoint", f"https://host/v1?key={KEY}"), "must not hold a query"),
    (("--endpoint", GPU, "--kind", "vlm"), "did you mean 'vllm'?"),
    (("--endpoint", GPU, "--rpm", "-1"), "endpoints.0.limits.rpm: must be more than 0"),
    (("--endpoint", GPU, "--endpoint", GPU), "more than one is called 'gpu-0:8000'"),
    (("--endpoint", GPU, "--judge", "judge-*"), "--judge must be the name of one model"),
    ((*FLEET, "--judge", "gpt-4"), "no endpoint serves 'gpt-4'; they serve 'judge-*', 'embed-1'; add it with --model"),
    ((*FLEET, "--trainer", "trl"), "--trainer needs --judge MODEL"),
    *(
        (("--endpoint", API, "--key-variable", key), "must be the name of an environment variable")
        for key in (KEY, "AKIA0123456789ABCDEFG", "0a1b2c3d4e5f60718293a4b5c6d7e8f9", "AIzaSyD0123456789abcdef", "ghp_0123456789abcdef", "")
    ),
]


def test_what_is_wrong_is_refused_before_anything_is_written_and_no_key_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "there.toml").write_text("mine")
    for options, words in REFUSED:
        assert main(["init", *options]) == 2, options
        said = capsys.readouterr()
        assert words in said.err, (options, said.err)
        assert said.out == ""
        assert not re.search("right-key|AKIA|0a1b|AIza|ghp_", said.err), said.err
    assert [path.name for path in folder.iterdir()] == ["there.toml"]
    assert (folder / "there.toml").read_text() == "mine"
    with pytest.raises(SystemExit):
        main(["init", "--model", "judge-*", "--endpoint", GPU])
    assert "--model belongs to an endpoint; write it after --endpoint URL" in capsys.readouterr().err


def test_a_judge_is_added_beside_a_configuration_file_that_is_kept_with_its_comments(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MY_KEY")
    assert main(["init", *FLEET, *PAID]) == 0
    written = folder / "qreward.toml"
    (folder / "qreward.json").write_text(json.dumps(tomllib.loads(written.read_text())))
    for path in (written, folder / "qreward.json"):
        kept = path.read_text() + ("" if path.suffix == ".json" else "# mine\n")
        path.write_text(kept)
        capsys.readouterr()
        given = () if path is written else (str(path),)  # the usual name need not be given
        assert main(["init", *given, "--judge", "judge-7b", "--force"]) == 0
        said = capsys.readouterr().out
        assert (f"written  {'' if not given else f'{folder}/'}judge.toml" in said, "export MY_KEY=..." in said) == (True, True), said
        assert path.read_text() == kept
        with monkeypatch.context() as context:
            context.setenv("MY_KEY", KEY)
            scorer = load_reward_config(folder / "judge.toml")
        assert (scorer.models, scorer.client and len(scorer.client.endpoints)) == (("judge-7b",), 2)
    assert main(["init", "--judge", "gpt-4"]) == 2
    assert "judge.toml exists; name another file" in capsys.readouterr().err
    assert main(["init", "--judge", "gpt-4", "--force"]) == 2
    expected = "no endpoint in qreward.toml serves 'gpt-4'; they serve 'judge-*', 'embed-1', 'judge-7b'; add it to models in qreward.toml"
    assert expected in capsys.readouterr().err
    for routes in ({"judge-*": {"endpoints": ["a"]}}, [{"pattern": "judge-*", "endpoints": ["a"]}]):
        routed = {"endpoints": [{"base_url": GPU, "name": "a", "models": ["rm-*"]}], "routes": routes}
        (folder / "routed.json").write_text(json.dumps(routed))
        assert main(["init", "routed.json", "--judge", "judge-7b", "--force"]) == 0, routes
    (folder / "other.toml").write_text("[judge]\nmodel = 'm'\n")
    assert main(["init", "other.toml", "--judge", "judge-7b", "--force"]) == 2
    assert "other.toml: is not a configuration file of a client" in capsys.readouterr().err


def test_the_line_for_a_trainer_is_that_of_its_page_and_comes_after_the_import_that_it_needs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = Path(__file__).parents[1] / "docs/trainers"
    page = (pages / "index.md").read_text()
    assert [trainer for trainer, line in init.TRAINERS.items() if f"`{line}`" not in page] == []
    assert main(["init", *FLEET, "--judge", "judge-7b", "--trainer", "trl"]) == 0
    assert (
        '  from qreward.integrations.trl import reward\n  reward_funcs=reward("reward.toml")    # in trl; see ' in capsys.readouterr().out
    )
    assert "# For trl:  from qreward.integrations.trl import reward\n" in (folder / "reward.toml").read_text()
    assert init.IMPORTS["trl"] in (pages / "trl.md").read_text()


def test_the_page_shows_what_the_command_writes(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    page = (Path(__file__).parents[1] / "docs/get-started/configuration.md").read_text()
    blocks = re.findall(r"^```(bash|text|toml|yaml)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    command, shown, written = (text for _, text in blocks[1:4])
    assert main(shlex.split(command.replace("\\\n", ""))[1:]) == 0
    assert capsys.readouterr().out == shown
    assert (folder / "qreward.toml").read_text() == written
    (folder / "same.yaml").write_text(blocks[4][1])
    monkeypatch.setenv("API_KEY", KEY)
    assert read_config(folder / "same.yaml")[0] == read_config(folder / "qreward.toml")[0]


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
