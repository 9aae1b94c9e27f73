"""Settings files for adapters, and programs that use one and end: what the tests of all trainers share."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from qreward.testing import FakeEndpoint, FakeFleet, Faults

REWARDER = importlib.import_module("qreward.integrations.trainers.rewarder")
NOISE = re.compile(r"Unclosed|was never (awaited|retrieved)|was destroyed|Event loop is closed|ResourceWarning|Traceback")
JUDGE: dict[str, Any] = {"model": "judge-7b", "scale": [0, 1], "reasks": 0}
"""One that the fake fleet's judge answers: 1 if the response has the value of the reference, else 0."""


def fleet_of(faults: Faults | None = None, process: bool = False, **settings: Any) -> FakeFleet:
    """One fake judge, not started."""
    endpoint = FakeEndpoint("judge-0", responder="judge", faults=faults or Faults(), **settings)
    return FakeFleet([endpoint], process=process)


def settings_of(fleet: FakeFleet, folder: Path, attempt: float | None = 2.0, **changes: Any) -> Path:
    """The file of an adapter's settings for this fleet, whose limits are known; attempts are given up after ``attempt`` seconds."""
    known = {"proxy": "", "limits": {"max_concurrency": 64}, "timeouts": {"attempt": attempt}}
    client = {"endpoints": [{"base_url": url, "name": name, **known} for name, url in fleet.urls.items()]}
    file = folder / "reward.json"
    file.write_text(json.dumps({"client": client, "judge": JUDGE, "deadline": 30.0, **changes}), encoding="utf-8")
    return file


def ended_quietly(program: str, settings: Path, *arguments: str, dev: bool = True) -> str:
    """What a program printed that ended well, and said nothing of things that were left open.

    Args:
        dev: in Python's development mode, which tells of whatever was left open.

    Raises:
        AssertionError: it failed, or did.
    """
    command = [sys.executable, *(["-X", "dev", "-W", "default"] if dev else []), "-c", program, *arguments]
    env = os.environ | {"QREWARD_REWARD": str(settings), "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert NOISE.search(done.stdout + done.stderr) is None, done.stderr[-3000:]
    return done.stdout
