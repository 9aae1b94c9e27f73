"""``qreward demo``: its input and output, its progress line, its report, and small runs of the whole."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qreward.cli import demo, main
from qreward.errors import ConfigError, RequestTimeout
from qreward.results import BatchStats, EndpointStats, Result, Usage


class Words:
    """An answer that says what it is told to."""

    usage: Usage | None = None

    def __init__(self, text: str) -> None:
        self._text = text

    def build(self) -> Any:
        return self._text

    def text(self) -> str:
        return self._text


REQUEST = demo.DemoRequest("judge-1", [{"role": "user", "content": "?"}], "correct")
STATS = BatchStats(
    items=3,
    ok=2,
    failed=1,
    seconds=3.0,
    endpoints={"b": EndpointStats(sent=4, won=2, rejected=1, retried=1, p50=0.25, p95=0.5), "a": EndpointStats(sent=1, failed=1)},
)


def answered(text: str) -> Result[Any]:
    return Result(0, Words(text), None, "gpu-0", 0.5, 0.0)


def timed_out() -> Result[Any]:
    return Result(0, None, RequestTimeout("no answer in 120 s"), None, 0.0, 0.0)


def run(*args: str) -> int:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args(args))


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def small_input(path: Path, count: int = 40, **changes: str) -> Path:
    lines = [json.loads(line) | changes for line in demo.INPUT.read_text(encoding="utf-8").splitlines()[:count]]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_the_input_of_a_checkout_is_found_and_read() -> None:
    requests = demo.read_requests(demo.INPUT)
    assert len(requests) >= 600
    assert {request.expected for request in requests} == {"correct", "incorrect"}


def test_an_input_that_is_missing_empty_or_wrong_is_an_error_that_names_the_file_and_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the judge requests '.*none\.jsonl': No such file.*--input"):
        demo.read_requests(tmp_path / "none.jsonl")
    path = tmp_path / "in.jsonl"
    for bad in (b'{"id": "x"', b'{"id": "x", "expected": "correct"}', b'{"id": "x", "messages": "hi", "expected": "correct"}'):
        path.write_bytes(msgspec.json.encode(REQUEST) + b"\n\n" + bad)
        with pytest.raises(ConfigError, match=r"in\.jsonl, line 3: "):
            demo.read_requests(path)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no judge requests"):
        demo.read_requests(path)


def test_an_answer_becomes_a_verdict_with_its_endpoint() -> None:
    row = demo.judged(REQUEST, answered('{"verdict": "correct", "score": 1, "reason": "same text", "echo": "00"}'))
    assert (row.verdict, row.score, row.endpoint, row.attempts, row.error) == ("correct", 1.0, "gpu-0", 1, None)


def test_an_answer_that_is_no_verdict_and_a_failed_request_are_missing_and_say_why_and_are_no_score_of_zero() -> None:
    for text in ("", "I think it is correct.", '{"score": 1}', '{"verdict": null, "score": 1}'):
        row = demo.judged(REQUEST, answered(text))
        assert (row.verdict, row.score, str(row.error).partition(": ")[0]) == (None, None, "not a verdict")
    row = demo.judged(REQUEST, timed_out())
    assert (row.verdict, row.score, row.error) == (None, None, "RequestTimeout: no answer in 120 s")


def test_the_report_counts_agreement_and_compares_with_the_bound() -> None:
    right, wrong = (demo.judged(REQUEST, answered(f'{{"verdict": "{verdict}", "score": 0}}')) for verdict in ("correct", "incorrect"))
    report = demo.report([right, wrong, demo.judged(REQUEST, timed_out())], STATS, bound=2.0)
    assert "1 of 3 as expected, 1 wrong, 1 missing" in report
    assert "bulk          3.00 s" in report
    assert "lower bound   2.00 s" in report
    assert "ratio         1.50" in report


def test_a_run_judges_each_request_as_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out" / "verdicts.jsonl"
    assert run("--input", str(small_input(tmp_path / "in.jsonl")), "--output", str(path)) == 0
    out = capsys.readouterr().out
    rows = written(path)
    assert [row["id"] for row in rows] == [f"judge-{number:04d}" for number in range(1, 41)]
    assert all(row["verdict"] == row["expected"] for row in rows)
    assert "40 of 40 as expected, 0 wrong, 0 missing" in out
    assert {"judge-small", "judge-limited", "judge-mortal"} <= set(out.split())


def test_a_verdict_that_is_not_the_expected_one_ends_in_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = small_input(tmp_path / "in.jsonl", count=3, expected="perhaps")
    assert run("--input", str(source), "--output", str(tmp_path / "verdicts.jsonl")) == 1
    assert "0 of 3 as expected, 3 wrong, 0 missing" in capsys.readouterr().out


def test_the_input_can_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "verdicts.jsonl"
    assert run("--input", str(small_input(tmp_path / "in.jsonl", count=5)), "--output", str(path), "--repeat", "3") == 0
    assert len(written(path)) == 15
    assert "15 of 15 as expected" in capsys.readouterr().out


def test_a_repeat_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="--repeat must be at least 1"):
        run("--repeat", "0")


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_judged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "verdicts.jsonl"):
        with pytest.raises(ConfigError, match=r"cannot write the verdicts to .*--output"):
            run("--output", str(path))


def test_the_command_line_knows_the_verb_and_ends_in_2_for_a_missing_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--input", str(tmp_path / "none.jsonl")]) == 2
    assert "qreward demo: cannot read the judge requests" in capsys.readouterr().err


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
