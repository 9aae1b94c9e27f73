"""A scorer as trainers have them: reads the sum out of a completion, and says how far off it is. What it cannot read, it raises for."""

from __future__ import annotations

import os
import re
import time
from typing import Any

ASKED = re.compile(r"(\d+) \+ (\d+) = \?.*?answer is (-?\d+)", re.DOTALL)
SECONDS = float(os.environ.get("SUM_SECONDS", "0"))
"""For each call, whatever its length."""


def score(completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
    """Minus the distance to the right sum."""
    time.sleep(SECONDS)
    return [distance(text) for text in completions]


def distance(text: str) -> float:
    found = ASKED.search(text)
    if found is None:
        raise ValueError(f"no answer in a completion of {len(text)} characters")
    first, second, answer = map(int, found.groups())
    return float(-abs(first + second - answer))
