"""Each trainer's page names the versions that its tests run with, and each example installs what it stands beside."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = ROOT / "tests" / "slow"
PAGES = ("areal", "openrlhf", "roll", "slime", "trl", "verifiers", "verl")


def pinned(trainer: str) -> set[str]:
    """Versions of a trainer that its tests, also those of an older version, are run with."""
    files = [file for folder in SLOW.glob(f"{trainer}*") for file in folder.glob("*.txt")]
    return {version for file in files for version in re.findall(rf"^{trainer}==(\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)}


def test_each_page_names_the_versions_it_was_run_with() -> None:
    missing = {}
    for page in PAGES:
        sentence = re.search(r"Run with .*?[.;](?=\s)", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
        named = set(re.findall(r"\d+\.\d+\.\d+|(?<=commit `)[0-9a-f]{7,}", sentence[0])) if sentence else set()
        if not named or not pinned(page) <= named:
            missing[page] = (named, pinned(page))
    assert missing == {}


def test_the_trainers_that_pypi_has_are_pinned() -> None:
    assert {page for page in PAGES if not pinned(page)} == {"roll", "slime"}


def test_examples_install_this_checkout_and_not_an_older_release() -> None:
    texts = {file.parent.name: file.read_text(encoding="utf-8") for file in (ROOT / "examples").glob("*/README.md")}
    assert {name for name, text in texts.items() if re.search(r"pip install '?qreward", text)} == set()
    assert {name for name, text in texts.items() if "pip install '.[yaml]'" not in text} == set()
