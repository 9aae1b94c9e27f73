"""What is tested with both versions of the SDK stands beside this folder, and what is fast with the fast tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SLOW = Path(__file__).parents[1]
sys.path.insert(0, str(SLOW / "openai_sdk"))
PARTS = [f"test_openai_{part}" for part in ("errors", "facade", "load", "shapes", "transport")]
pytest.register_assert_rewrite("suite", "langchain_cases", "openai_tools", *PARTS)
