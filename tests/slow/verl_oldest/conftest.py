"""What is tested with both versions of verl stands beside this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "verl"))
pytest.register_assert_rewrite("test_slow_verl")
