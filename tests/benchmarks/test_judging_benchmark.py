"""The benchmark of judging runs, and its report says what the records say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert [record[name]["requests"] for name in (judging.THRICE, judging.MAJORITY, judging.MEAN)] == [3.0] * 3


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
