"""verl itself, without what it needs to train: of its requirements, those that computing rewards takes are in requirements.txt."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

VERL = "verl==0.9.1"


@pytest.fixture(scope="session", autouse=True)
def verl() -> None:
    """Installed beside the tests, unless it is there."""
    if importlib.util.find_spec("verl") is None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", VERL]
        subprocess.run(command, check=True)
