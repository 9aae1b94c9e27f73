"""What is written of telemetry is true: the table of metrics, the example, and the benchmark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from qreward.telemetry.telemetry import METRICS as INSTRUMENTS

ROOT = Path(__file__).parents[2]
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
PAGES = METRICS + (ROOT / "docs" / "how-to" / "telemetry.md").read_text(encoding="utf-8")


def run(*command: str, folder: str) -> str:
    """What a Python process prints in which each warning is an error; it must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command], cwd=ROOT / folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_reference_lists_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([a-z ]+) \| `([^`]+)` \| ([^|]+) \|", METRICS, re.MULTILINE)
    assert rows == [(metric.name, metric.kind.replace("_", " "), metric.unit, metric.description) for metric in INSTRUMENTS.values()]


def test_the_pages_name_no_attribute_that_there_is_not() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "qreward" / "telemetry").glob("*.py"))
    known = set(re.findall(r'"([a-z_]+\.[a-z_.]+)"', code))
    named = set(re.findall(r"`((?:gen_ai|qreward|server|error|code|http)\.[a-z_.]+)`", PAGES)) - {"qreward.observers"}
    assert named <= known


def test_the_example_shows_retries_below_their_calls_and_the_callers_span_above() -> None:
    *metrics, _ = out = run("client_telemetry.py", folder="examples").splitlines()
    place = out.index("rollout 7")
    assert all(re.fullmatch(r"(gen_ai|qreward)\.[a-z_.]+ \[.+\] [1-9]\d* points", line) for line in metrics[:place])
    assert sum(line.startswith("  chat judge-7b gpu-1") for line in out[place:]) == 3
    assert "    attempt original failed gpu-0 500" in out
    assert "    attempt retry won gpu-1" in out


def test_the_benchmark_measures_each_way(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.json"
    printed = run("telemetry.py", "--rounds", "1", "--calls", "20", "--json", str(path), folder="benchmarks")
    found = json.loads(path.read_text())
    assert len(found["rows"]) == 6
    for row in found["rows"]:
        assert f"| {row['way']} |" in printed
    for record in found["records"]:
        assert all(value > 0 for value in [*record["alone"].values(), *record["in_a_call"].values()])
