"""The examples for TRL and verl, run as a reader without either would run them; and their files, read as trainers would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qreward.integrations.trainers import load_reward_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def lines_of(script: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name], cwd=script.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "is out of service" not in line] == []  # the script ends its servers
    return done.stdout.splitlines()


def test_the_example_for_trl_scores_and_leaves_out_what_could_not_be_scored() -> None:
    assert lines_of(EXAMPLES / "trl_example" / "try_it.py") == [
        "the judge alone: [1.0, 0.0, 1.0, 0.0]",
        "with brevity: [1.1, 0.1, 1.1, 0.1]",
        "logged: correctness/ok, correctness/seconds, correctness/tokens, rewards/brevity/mean, rewards/correctness/mean",
        "no judge is there: [None, None, None, None]",
        "with brevity: [None, None, None, None]",
    ]


def test_the_example_for_verl_scores_raises_or_gives_the_number_that_was_chosen() -> None:
    scored, values, raised, chosen, numbers = lines_of(EXAMPLES / "verl_example" / "try_it.py")
    keys = "score, judge_ok, judge_error, judge_seconds, judge_tokens"
    assert scored == f"a tenth of the requests fails: 32 of 32 with the keys {keys}"
    assert values == "  scores [1.0, 0.0, 1.0, 1.0], judge_ok 32"
    assert re.match(r"no judge is there: (RequestTimeout|ConnectionFailed)\(", raised)  # by what was under way at the end of the time
    assert chosen == f"and on_failure is -1: 32 of 32 with the keys {keys}"
    assert numbers == "  scores [-1.0, -1.0, -1.0, -1.0], judge_ok 0"


@pytest.mark.parametrize("folder", ["trl_example", "verl_example"])
def test_the_settings_of_an_example_are_valid_and_named_in_its_readme(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_URL", "http://judge:8000/v1")
    monkeypatch.setenv("JUDGE_KEY", "not-secret")
    config = load_reward_config(EXAMPLES / folder / "reward.yaml")
    assert config.judge
    assert config.client
    readme = (EXAMPLES / folder / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in (EXAMPLES / folder).iterdir() if not path.name.startswith("_")} - {"README.md"}
    assert {name for name in files if f"[{name}]({name})" not in readme} == set()


@pytest.mark.parametrize("page", ["trl.md", "verl.md"])
def test_the_settings_of_a_page_are_valid_and_its_table_has_them_all(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_URL", "http://judge:8000/v1")
    monkeypatch.setenv("JUDGE_KEY", "not-secret")
    text = (EXAMPLES.parent / "docs" / page).read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert block
    config = load_reward_config(yaml.safe_load(block[1]))
    listed = re.findall(r"^\| `(\w+)` \|", text.partition("## The settings")[2].partition("###")[0], re.MULTILINE)
    assert set(listed) - {"config"} == set(type(config).model_fields)
