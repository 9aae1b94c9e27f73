"""The example of ROLL: its script runs on its own two YAML files, and these say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qreward.integrations.trainers import load_reward_config

FOLDER = Path(__file__).parents[2] / "examples" / "roll_example"


def test_the_script_judges_by_the_two_files_and_prints_what_the_readme_says() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "try_it.py"], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "is out of service" not in line] == []  # a server of the script fails
    assert f"```text\n{done.stdout}```" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_yaml_names_our_classes_and_no_key_of_the_section_is_unknown_to_roll() -> None:
    whole = yaml.safe_load((FOLDER / "rlvr_llm_judge.yaml").read_text(encoding="utf-8"))
    section = whole["rewards"]["llm_judge"]
    assert section["worker_cls"] == "qreward.integrations.roll.JudgeRewardWorker"
    assert whole["user_defined_rollout_loop_cls"] == "qreward.integrations.roll.SkippingRolloutLoop"
    known = {"worker_cls", "tag_included", "world_size", "model_args", "system_envs", "reward_manager_config"}
    assert section.keys() == known  # tests/slow/roll asks ROLL itself


def test_the_settings_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "not-secret")
    config = load_reward_config(FOLDER / "reward.yaml")
    assert config.client is not None
    assert [endpoint.name for endpoint in config.client.endpoints] == ["gpu-0", "gpu-1", "hosted"]
    assert config.client.endpoints[2].limits.shared == "local"
