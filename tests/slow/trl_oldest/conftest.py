"""What is tested with both versions of TRL stands beside this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "trl"))
pytest.register_assert_rewrite("test_slow_trl")
