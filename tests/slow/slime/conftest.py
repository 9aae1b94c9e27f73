"""slime's sources, and a fleet with its settings file.

PyPI has no slime: ``QREWARD_SLIME_SOURCE`` names the folder of a checkout of ``github.com/THUDM/slime``. Without it nothing here runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qreward.testing import FakeEndpoint, FakeFleet, Faults

SOURCE = os.path.abspath(os.environ["QREWARD_SLIME_SOURCE"]) if os.environ.get("QREWARD_SLIME_SOURCE") else ""  # noqa: PTH100

if SOURCE:
    sys.path.insert(0, SOURCE)


@pytest.fixture(scope="session", autouse=True)
def source() -> str:
    """The folder of slime's sources."""
    if not SOURCE:
        pytest.skip("QREWARD_SLIME_SOURCE names no checkout of github.com/THUDM/slime")
    return SOURCE


@pytest.fixture
def steady() -> Iterator[FakeFleet]:
    """One judge that breaks now and then, for a few calls: of these none can be known to take too long."""
    with FakeFleet([FakeEndpoint("steady", responder="judge", faults=Faults(error_500=0.1, seed=1))]) as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the settings for a fleet into a file that ``QREWARD_REWARD`` names."""

    def write(fleet: FakeFleet, **given: Any) -> Path:
        judge = {"model": "judge-7b", "scale": [0, 1], "reasks": 2}
        client = {"endpoints": [{"base_url": url, "name": name} for name, url in fleet.urls.items()]}
        file = tmp_path / "reward.json"
        file.write_text(json.dumps({"client": client, "judge": judge, **given}))
        monkeypatch.setenv("QREWARD_REWARD", str(file))
        return file

    return write
