"""What tests of the benchmarks share: a quick run of a script, a record, and the cells of a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def quick(script: str, path: Path, *more: str) -> tuple[Any, str]:
    """What a quick run wrote into the file, and what it printed."""
    command = [sys.executable, str(BENCHMARKS / script), "--quick", "--json", str(path), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text(encoding="utf-8")), done.stdout


def record(client: str, number: int, cpu_us: float, **more: Any) -> dict[str, Any]:
    """A record of one client in one round."""
    usual = {"in_flight": 64, "gc": False, "rss_mb": 1.0, "lag_ms": 2.0, "wall_rps": 3.0, "peak": 4}
    return {"client": client, "round": number, "cpu_us": cpu_us, **usual, **more}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
