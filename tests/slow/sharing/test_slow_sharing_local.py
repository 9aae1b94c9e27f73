"""Eight processes of one machine share a key over real endpoints, by files alone; two are killed half-way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sharing_trial import PROCESSES, trial

SETTLE, SPAN = 8.0, 60.0


@pytest.mark.timeout(400)
def test_eight_processes_keep_to_one_limit_use_it_up_and_share_it_equally_and_so_do_six_when_two_are_killed(tmp_path: Path) -> None:
    shares = tmp_path / "shares"
    with trial(tmp_path, "local") as run:
        worker = [sys.executable, str(Path(__file__).with_name("sharing_worker.py"))]
        environment = {**os.environ, "QREWARD_SHARE_DIR": str(shares)}
        workers = [subprocess.Popen([*worker, str(number), str(run.spec)], env=environment) for number in range(PROCESSES)]
        try:
            everybody = set(range(PROCESSES))
            run.wait_for_all(everybody)
            time.sleep(SETTLE)
            begin = time.monotonic()
            time.sleep(SPAN)
            half = time.monotonic()
            for dead in workers[:2]:
                dead.send_signal(signal.SIGKILL)
            time.sleep(SETTLE)
            again = time.monotonic()
            time.sleep(SPAN)
            end = time.monotonic()
            spans = {"eight": run.spans(begin, half, everybody), "six": run.spans(again, end, everybody - {0, 1})}
        finally:
            for each in workers:
                each.kill()
                each.wait()
        last = run.notes(7)[-1]
        print(last["sharing"], "cpu", last["cpu"])
        run.check(spans)
        assert all(words.startswith("one of 6 processes: ") for words in last["sharing"].values())
        assert all(run.notes(number)[-1]["failed"] == 0 for number in everybody)
