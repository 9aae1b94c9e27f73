"""The example of Ray is run as a reader without Ray would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_runs_without_ray_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import importlib.util, runpy\n"
        "importlib.util.find_spec = lambda name, package=None: None\n"  # also where Ray is installed
        f"runpy.run_path({str(EXAMPLES / 'ray_scorer.py')!r}, run_name='__main__')\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-W", "error", str(tmp_path / "run.py")]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    says, scored, *answers, deaths = done.stdout.splitlines()
    assert "pip install 'qreward[ray]'" in says
    assert scored == "local: 200 rewards, the last 100.0, in 7 batches"
    assert answers == ["  'fine': 2.0", "  '': ValueError: no answer", "  'segmentation fault': 9.0", "  'fine, too': 4.5"]
    assert deaths == "  0 deaths, 2 actors"
