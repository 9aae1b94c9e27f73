"""What tests of the benchmarks share: a run of a script, its page, a record, and the cells of a table. No time is judged anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MACHINE = {"cpu": "some CPU", "cores": "2", "system": "Linux", "python": "CPython 3.11"}


def command(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=250, check=False)


def quick(script: str, path: Path, *more: str) -> tuple[Any, str]:
    """What a quick run wrote into the file, and what it printed."""
    done = command(script, "--quick", "--json", str(path), *more)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text(encoding="utf-8")), done.stdout


def rewritten(script: Any, writer: Any, sections: str, run: Any, patch: pytest.MonkeyPatch, folder: Path) -> str:
    """The page of which ``--markdown`` wrote the sections from a saved run. ``writer`` is the module that knows the page."""
    page, saved = folder / "page.md", folder / "saved.json"
    marks = "".join(f"<!-- {name}:begin -->old {name}<!-- {name}:end -->" for name in sections.split())
    page.write_text(f"before {marks} after", encoding="utf-8")
    saved.write_text(json.dumps(run), encoding="utf-8")
    patch.setattr(writer, "PAGE", page)
    patch.setattr(sys, "argv", [f"{script.__name__}.py", "--json", str(saved), "--markdown"])
    script.main()
    assert json.loads(saved.read_text(encoding="utf-8")) == run, "it measures nothing"
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before <!--")
    assert text.endswith("--> after")
    return text


def record(client: str, number: int, cpu_us: float, **more: Any) -> dict[str, Any]:
    """A record of one client in one round."""
    usual = {"in_flight": 64, "gc": False, "rss_mb": 1.0, "lag_ms": 2.0, "wall_rps": 3.0, "peak": 4}
    return {"client": client, "round": number, "cpu_us": cpu_us, **usual, **more}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
