"""What a release is made of agrees: the version, the changelog, the versions of Python, and the workflow."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def parsed(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_changelog_has_its_form_and_its_newest_release_is_the_version_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", release) for release in releases]
    dated = [(date.fromisoformat(each[2]), each[1]) for each in found if each]
    assert len(dated) == len(releases), releases
    assert dated == sorted(dated, key=lambda each: each[0], reverse=True)
    assert dated[0][1] == PROJECT["version"]
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= KINDS


def test_ci_runs_on_every_version_of_python_that_the_package_names_and_asks_only_for_what_there_is() -> None:
    jobs = parsed(".github/workflows/ci.yml")["jobs"]
    versions = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", entry)]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == versions
    assert PROJECT["requires-python"] == f">={versions[0]}"
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs == ["bash .ci/run", "make dist", "make docs"]
    assert all("timeout-minutes" in job for job in jobs.values())
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    listed = re.findall(r"^for target in (.*); do", script, re.MULTILINE)[0].split()
    assert {target for target in listed if not target.startswith("slow-")} | {"dist", "docs"} <= TARGETS
    assert "dist" in listed
    assert all(f"python{version}" in script for version in versions)
