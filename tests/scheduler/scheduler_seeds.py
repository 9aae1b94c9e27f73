"""How much random work the tests of this folder do: little by default, ``TEST_SCALE=10`` is ten times as much."""

from __future__ import annotations

import os

SCALE = int(os.environ.get("TEST_SCALE", "1"))


def seeds(count: int, first: int = 0) -> range:
    """So many seeds, times the scale."""
    return range(first, first + count * SCALE)
