"""The source distribution and the wheel: what they hold, and that the wheel works in an empty environment without extras."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("qreward/**/*") if path.is_file() and "__pycache__" not in path.parts}

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
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source distribution, and the wheel that was made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment that holds the wheel and what the wheel requires, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = built.glob("qreward-*.whl")
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
def test_both_distributions_hold_the_package_its_data_and_its_license_and_no_tests_or_examples(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = archive.read(metadata).decode()
    assert {name for name in names if ".dist-info/" not in name} == PACKAGE
    assert {"qreward/py.typed", "qreward/cli/judge_requests.jsonl", "qreward/cli/init_judge.toml"} < PACKAGE
    assert metadata.replace("METADATA", "licenses/LICENSE") in names
    assert {"License-Expression: Apache-2.0", "Requires-Python: >=3.11"} <= set(described.splitlines())
    with tarfile.open(source) as tar:
        files = {name.partition("/")[2] for name in (member.name for member in tar if member.isfile())}
    beside = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    assert {name for name in files if not name.startswith("qreward.egg-info/")} == PACKAGE | beside


@pytest.mark.timeout(900)
def test_the_demo_the_command_line_and_a_batch_work_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    helped = run(environment / "bin/qreward", "--help", cwd=tmp_path)
    assert all(command in helped for command in ("check", "demo", "route", "serve")), helped

    report = run(environment / "bin/qreward", "demo", "--output", tmp_path / "verdicts.jsonl", cwd=tmp_path)
    assert "verdicts.jsonl" in report, report
    assert len((tmp_path / "verdicts.jsonl").read_text().splitlines()) > 100

    run(environment / "bin/python", "-W", "error", "-c", BATCH, cwd=tmp_path)
