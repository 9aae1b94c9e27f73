"""A notebook to show things in."""

from __future__ import annotations

import sys

import pytest
from notebook_tools import Notebook


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """What is shown in it."""
    made = Notebook()
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    monkeypatch.setattr("qreward.notebook.display.is_notebook", lambda: True)
    return made
