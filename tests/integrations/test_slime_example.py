"""The example of slime: its script runs on its own settings, and its arguments name functions that are there."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qreward.integrations.trainers import load_reward_config

FOLDER = Path(__file__).parents[2] / "examples" / "slime_example"


def test_the_script_judges_by_the_settings_and_prints_what_the_readme_says() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "try_it.py"], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"```text\n{done.stdout}```" in (FOLDER / "README.md").read_text(encoding="utf-8")
    (said,) = done.stderr.splitlines()  # what a log that nobody set up tells of the one that failed
    assert said.startswith("1 rewards could not be had so far; this one: ")


def test_the_arguments_name_functions_that_are_there() -> None:
    text = (FOLDER / "reward_args.sh").read_text(encoding="utf-8")
    named = re.findall(r"--custom-\S+-path (\S+)", text)
    assert len(named) == 3
    for path in named:
        module, _, function = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function))
    assert subprocess.run(["bash", "-n", str(FOLDER / "reward_args.sh")], check=False).returncode == 0


def test_the_settings_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "not-secret")
    config = load_reward_config(FOLDER / "reward.yaml")
    assert config.columns == {"prompt": "metadata.question"}
