"""The example of settings that follow a file runs as a reader would run it, and shows what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_follows_its_file_refuses_what_is_wrong_and_goes_back_to_the_code() -> None:
    run = [sys.executable, "-W", "error", "schedule_config_hot_reload.py"]
    done = subprocess.run(run, cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "at most 5 at once: timeout=30.0 max_concurrency=5",
        "at most 20 at once: timeout=30.0 retry_times=3 max_concurrency=20",
        "refused: max_concurrency: 0 does not switch it off; use None to switch it off",
        "at most 20 at once: timeout=30.0 retry_times=3 max_concurrency=20",
        "at most 2 at once: timeout=30.0 max_concurrency=2",
    ]
