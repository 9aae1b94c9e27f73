"""The benchmarks of bulks from files: both run, lost and repeated items are counted, and the run becomes a section of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import cells, quick, rewritten


def test_the_quick_run_measures_all_parts_and_its_file_becomes_the_section_of_the_page(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = module("bulk")
    found, said = quick("bulk.py", tmp_path / "bulk.json")
    assert [name for name in bulk.PARTS if name in found] == list(bulk.PARTS)
    assert len(found["journal"]) == 3
    assert found["throughput"]["lines"] == 200
    assert found["throughput"]["bound"] < min(found["throughput"]["file"], found["throughput"]["memory"])
    assert found["resume"]["lines"] == 5000
    assert cells(said.splitlines()[-1])[0] == "5,000"
    text = rewritten(bulk, bulk, "bulk", found, monkeypatch, tmp_path)
    assert said.strip() in text
    assert "<!-- bulk:begin -->\nMeasured on " in text


def test_the_quick_run_kills_ours_and_a_script_and_only_ours_goes_on(module: Any, tmp_path: Path) -> None:
    peers = module("bulk_peers")
    found, said = quick("bulk_peers.py", tmp_path / "peers.json")
    assert tuple(found["clients"]) == peers.QUICK
    ours, script = (found["clients"][name] for name in peers.QUICK)
    for when in ("undisturbed", "killed"):
        assert (ours[f"{when}_lost"], ours[f"{when}_duplicates"]) == (0, 0), when
    assert ours["undisturbed_twice"] == 0
    assert 0 <= ours["killed_twice"] <= peers.SLOTS
    assert script["killed_duplicates"] > peers.SLOTS < script["killed_twice"]
    assert said.strip() in peers.section(found)
    assert [cells(line)[0] for line in said.splitlines()[2:]] == list(peers.QUICK)


def test_answers_are_counted_in_files_and_folders_and_torn_lines_and_errors_are_none(module: Any, tmp_path: Path) -> None:
    peers = module("bulk_peers")
    lines = [json.dumps({"custom_id": name, "response": response}) for name, response in (("a", {}), ("b", None), ("a", "text"))]
    (tmp_path / "one.json").write_text("\n".join([*lines, lines[0][:20]]))
    (tmp_path / "two.json").write_text(lines[0])
    assert list(peers.answered(tmp_path / "one.json")) == ["a", "a"]
    assert list(peers.answered(tmp_path)) == ["a", "a", "a"]
    assert list(peers.answered(tmp_path / "none.json")) == []
