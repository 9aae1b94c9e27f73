"""What needs a Ray of its own, in processes of its own: a node that goes away, and the example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(300)


def printed(script: Path) -> str:
    quiet = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, str(script)], env=quiet, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_batch_of_a_node_that_goes_away_is_scored_on_another() -> None:
    assert "scores [1, 2] retried 1 poisonous 0" in printed(HERE / "node_loss.py")


def test_the_example_runs_on_ray_and_only_the_deadly_answer_fails() -> None:
    lines = printed(HERE.parents[2] / "examples" / "ray_scorer.py").splitlines()
    assert "ray: 200 rewards, the last 100.0, in 7 batches" in lines
    assert "  'fine': 2.0" in lines
    assert "  '': ValueError: no answer" in lines
    assert "  'fine, too': 4.5" in lines
    assert any(line.startswith("  'segmentation fault': ActorDied") for line in lines)
