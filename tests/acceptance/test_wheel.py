"""The wheel in an empty environment without extras: the demo, the command line and a batch work there as from a clone."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

BATCH = """
import asyncio, sys
from pathlib import Path
import qreward
from qreward.testing import FakeEndpoint, FakeFleet

async def main():
    with FakeFleet([FakeEndpoint("a"), FakeEndpoint("b")]) as fleet:
        async with qreward.QRewardClient(fleet.endpoints) as client:
            batch = await client.batch_chat_completion([[{"role": "user", "content": f"question {i}"}] for i in range(40)], model="m")
    assert len(batch.texts()) == 40 and not batch.errors, batch.errors

assert Path(qreward.__file__).is_relative_to(sys.prefix), qreward.__file__
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment that holds the wheel and what the wheel requires, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    wheels = folder / "wheels"
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT, cwd=folder)
    (wheel,) = wheels.glob("qreward-*.whl")
    venv.create(folder / "env", with_pip=True)
    run(folder / "env/bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    return folder / "env"


def run(*command: object, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(900)
def test_the_demo_the_command_line_and_a_batch_work_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    helped = run(environment / "bin/qreward", "--help", cwd=tmp_path)
    assert all(command in helped for command in ("check", "demo", "route", "serve")), helped

    report = run(environment / "bin/qreward", "demo", "--output", tmp_path / "verdicts.jsonl", cwd=tmp_path)
    assert "verdicts.jsonl" in report, report
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) > 100

    run(environment / "bin/python", "-W", "error", "-c", BATCH, cwd=tmp_path)
