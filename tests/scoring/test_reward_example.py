"""The example is run as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_example_scores_a_batch_in_which_only_the_refused_items_fail() -> None:
    command = [sys.executable, "-W", "error", "reward_models.py"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "the batch: 1960 scored, 40 refused" in done.stdout
    rewards = re.search(r"^rewards: \[(.*)\]$", done.stdout, re.MULTILINE)
    assert rewards
    assert [reward == "None" for reward in rewards[1].split(", ")] == [False, False, True, False, False]
    shares = [(int(items), int(answers)) for items, answers in re.findall(r"(\d+) items in (\d+) answers", done.stdout)]
    assert sum(items for items, _ in shares) == 1960
    assert sum(answers for _, answers in shares) < 1000
