"""How much random work the tests do: little by default, ten times as much with ``TEST_SCALE=10``, as in ``make test-all``."""

from __future__ import annotations

import os

SCALE = int(os.environ.get("TEST_SCALE", "1"))


def seeds(count: int, first: int = 0) -> range:
    """So many seeds, times the scale."""
    return range(first, first + count * SCALE)
