"""``qreward demo``: its input and output, its progress line, its report, and small runs of the whole."""

from __future__ import annotations

import html
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qreward.cli import demo, main
from qreward.errors import RequestTimeout
from qreward.results import BatchStats, EndpointStats, Result, Usage


class Words:
    """An answer that says what it is told to."""

    usage: Usage | None = None

    def __init__(self, text: str) -> None:
        self._text = text

    def text(self) -> str:
        return self._text

    build = text


REQUEST = {"id": "judge-1", "messages": [{"role": "user", "content": "?"}], "expected": "correct"}
STATS = BatchStats(
    items=3,
    ok=2,
    failed=1,
    seconds=3.0,
    endpoints={"b": EndpointStats(sent=4, answered=2, rejected=1, retried=1, p50=0.25, p95=0.5), "a": EndpointStats(sent=1, failed=1)},
)


def answered(text: str) -> Result[Any]:
    return Result(0, Words(text), None, "gpu-0", 0.5, 0.0)


def timed_out() -> Result[Any]:
    return Result(0, None, RequestTimeout("no answer in 120 s"), None, 0.0, 0.0)


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Runs the demo on the first requests of its input, changed so; gives its status and the lines that it wrote."""

    def run(count: int, **changes: str) -> tuple[int, list[dict[str, Any]]]:
        lines = [json.loads(line) | changes for line in demo.INPUT.read_text(encoding="utf-8").splitlines()[:count]]
        (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        monkeypatch.setattr(demo, "INPUT", tmp_path / "in.jsonl")
        path = tmp_path / "out" / "verdicts.jsonl"
        status = main(["demo", "--output", str(path)])
        return status, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return run


def test_an_answer_that_is_no_verdict_and_a_failed_request_are_missing_and_say_why_and_are_no_score_of_zero() -> None:
    row = demo.row_of(REQUEST, answered('{"verdict": "correct", "score": 1, "reason": "same text", "echo": "00"}'))
    assert [row[name] for name in ("verdict", "score", "endpoint", "attempts", "error")] == ["correct", 1.0, "gpu-0", 1, None]
    for text in ("", "I think it is correct.", '{"score": 1}', '{"verdict": null, "score": 1}'):
        row = demo.row_of(REQUEST, answered(text))
        assert (row["verdict"], row["score"], str(row["error"]).partition(": ")[0]) == (None, None, "not a verdict")
    row = demo.row_of(REQUEST, timed_out())
    assert (row["verdict"], row["score"], row["error"]) == (None, None, "RequestTimeout: no answer in 120 s")


def test_the_report_counts_agreement() -> None:
    right, wrong = (demo.row_of(REQUEST, answered(f'{{"verdict": "{verdict}", "score": 0}}')) for verdict in ("correct", "incorrect"))
    report = demo.report([right, wrong, demo.row_of(REQUEST, timed_out())], STATS)
    parts = ("1 of 3 as expected, 1 wrong, 1 missing", "bulk          3.00 s")
    assert [part for part in parts if part not in report] == []


def test_the_picture_of_the_readme_shows_what_the_demo_prints() -> None:
    def shape(line: str) -> str:
        return " ".join(re.sub(r"[\d.]+", "0", line).split())

    picture = Path(__file__).parents[2] / "docs" / "assets" / "demo.svg"
    shown = {shape(html.unescape(text)) for text in re.findall(r"<text [^>]*>(.*?)</text>", picture.read_text(encoding="utf-8"))}
    lines = [shape(line) for line in demo.report([demo.row_of(REQUEST, timed_out())], STATS).splitlines()]
    head, values = lines[0], lines[-2:]
    assert {head, *values} <= shown
    count = len(demo.INPUT.read_text(encoding="utf-8").splitlines())
    assert f"{count} of {count} as expected, 0 wrong, 0 missing" in picture.read_text(encoding="utf-8")
    assert all(any(line.startswith(f"{name} 0 ") for line in shown) for name in demo.demo_fleet(count).names)


def test_a_run_judges_each_request_as_expected_and_ends_in_1_if_a_verdict_is_not(judged: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = judged(40)
    out = capsys.readouterr().out
    assert status == 0
    assert [row["id"] for row in rows] == [f"judge-{number:04d}" for number in range(1, 41)]
    assert all(row["verdict"] == row["expected"] for row in rows)
    assert "40 of 40 as expected, 0 wrong, 0 missing" in out
    assert {"judge-small", "judge-limited", "judge-mortal"} <= set(out.split())
    assert judged(3, expected="perhaps")[0] == 1
    assert "0 of 3 as expected, 3 wrong, 0 missing" in capsys.readouterr().out


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "verdicts.jsonl"):
        assert main(["demo", "--output", str(path)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"qreward demo: cannot write the verdicts to {str(path)!r}: ")
        assert "; name another file with --output\n" in said


def test_stopped_half_way_it_says_so_in_a_line_and_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "qreward", "demo", "--output", str(tmp_path / "out.jsonl")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("judge-7b: ")
        running.send_signal(signal.SIGINT)
        said = running.stderr.read()
    assert running.returncode == 130
    assert said.splitlines()[-1] == "qreward demo: stopped"
    assert "Traceback" not in said
