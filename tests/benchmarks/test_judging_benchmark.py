"""The benchmarks of judging and of the drop-in run, and their reports say what the records say. No time is judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_tools import cells, quick


def test_the_quick_run_judges_in_all_ways_with_as_many_requests_as_each_takes(module: Any, tmp_path: Path) -> None:
    judging = module("judging")
    found, said = quick("judging.py", tmp_path / "judging.json")
    (record,) = found["records"]
    assert list(judging.BESIDE) == [cells(line)[0] for line in said.splitlines()[2:]]
    assert set(record) == set(judging.BESIDE)
    assert all(way["us"] > 0 for way in record.values())
    assert said.strip() in judging.section(found)
    assert {name: record[name]["requests"] for name in (judging.BULK, judging.JUDGE, judging.DECIDED, judging.HAND)} == dict.fromkeys(
        (judging.BULK, judging.JUDGE, judging.DECIDED, judging.HAND), 1.0
    )
    assert record[judging.THRICE]["requests"] == record[judging.MEAN]["requests"] == 3.0
    assert 2.0 <= record[judging.MAJORITY]["requests"] <= 3.0, "two that agree settle it"


def test_a_judge_is_compared_with_the_same_messages_of_the_same_round(module: Any) -> None:
    judging = module("judging")
    slow, quick = (
        {
            name: {"us": base * factor, "requests": 1.0}
            for name, factor in zip(judging.BESIDE, (1, 2, 3, 6, 9, 20, 4, 5, 6, 8, 10), strict=True)
        }
        for base in (100.0, 50.0)
    )
    rows = [cells(line) for line in judging.report([slow, quick]).splitlines()[2:]]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        (name, f"{ratio:.2f} ({ratio:.2f}-{ratio:.2f})", judging.BESIDE[name])
        for name, ratio in zip(judging.BESIDE, (1, 2, 3, 2, 3, 10, 1, 1.25, 1.5, 1, 1.25), strict=True)
    ]
    assert rows[1][1] == "150 (100-200)"


def test_the_quick_run_of_the_drop_in_answers_every_call(tmp_path: Path) -> None:
    for more, names in ((), ["pool-httpx2", "qreward-httpx2"]), (("--streamed", "--clients", "qreward-httpx"), ["qreward-httpx"]):
        found, said = quick("drop_in.py", tmp_path / "drop_in.json", *more)
        assert [record["client"] for record in found["records"]] == names
        for record in found["records"]:
            assert record["right"] == record["requests"] > 0
            assert record["served"] == 1 + 16 + record["requests"], "first call, warm-up, window; nothing sent twice"
            assert record["cpu_us"] > 0
            assert f"| {record['client']} " in said


def test_streams_have_a_section_of_their_own(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_in = module("drop_in")
    for more, section in (([], "drop-in"), (["--streamed"], "drop-in-streamed"), (["--streamed", "--section", "x"], "x")):
        monkeypatch.setattr(sys, "argv", ["drop_in.py", *more])
        assert drop_in.arguments().section == section
