"""What the tests of several integrations use: a notebook to show things in, a scorer in place of a judge, and a fleet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_fakes import FakeScorer, configured, installed
from notebook_tools import Notebook
from trainers_tools import fleet_of

from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """What is shown in it."""
    made = Notebook()
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    monkeypatch.setattr("qreward.integrations.notebook.is_notebook", lambda: True)
    return made


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeScorer:
    made = installed(monkeypatch)
    configured(monkeypatch, tmp_path)
    return made


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with fleet_of() as made:
        yield made
    close_all()
