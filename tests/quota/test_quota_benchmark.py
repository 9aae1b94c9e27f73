"""The benchmark of sharing runs, and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sharing.py"


def test_the_benchmark_runs_and_its_figures_are_written(tmp_path: Path) -> None:
    out = tmp_path / "sharing.json"
    done = subprocess.run([sys.executable, str(SCRIPT), "--quick", "--json", str(out)], capture_output=True, text=True, check=True)
    rows = json.loads(out.read_text())
    assert [row["members"] for row in rows] == [1, 8, 64]
    assert all(row["ledger_us"] > 0 and row["file_us"] > 0 for row in rows)
    assert len(done.stdout.splitlines()) == 1 + len(rows)
