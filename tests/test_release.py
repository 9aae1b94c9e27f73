"""What a release is made of agrees: the version, the changelog, the versions of Python, the workflow, and the forms for issues."""

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
ELEMENTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def parsed(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_changelog_has_its_form_and_its_newest_release_is_the_version_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", release) for release in releases]
    assert all(found), releases
    assert [date.fromisoformat(each[2]) for each in found if each] == sorted(
        (date.fromisoformat(each[2]) for each in found if each), reverse=True
    )
    assert found[0]
    assert found[0][1] == PROJECT["version"]
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


def test_the_forms_for_issues_have_the_fields_that_github_asks_for() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").iterdir() if path.stem != "config"]
    assert {path.name for path in forms} == {"bug.yml", "feature.yml"}
    for path in forms:
        form = parsed(str(path.relative_to(ROOT)))
        assert form["name"]
        assert form["description"]
        ids = [element["id"] for element in form["body"] if element["type"] != "markdown"]
        assert len(set(ids)) == len(ids) > 0
        for element in form["body"]:
            assert element["type"] in ELEMENTS
            assert element["attributes"]["value" if element["type"] == "markdown" else "label"]
            assert element.keys() <= {"type", "id", "attributes", "validations"}
