"""The benchmark of bulks from files runs through, and writes its section of the page. No time is judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import cells, quick


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
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bulk:begin -->\nold\n<!-- bulk:end -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(bulk, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["bulk.py", "--json", str(tmp_path / "bulk.json"), "--markdown"])
    bulk.main()
    text = page.read_text(encoding="utf-8")
    assert said.strip() in text
    assert text.startswith("before\n<!-- bulk:begin -->\nMeasured on ")
    assert text.endswith("<!-- bulk:end -->\nafter\n")
