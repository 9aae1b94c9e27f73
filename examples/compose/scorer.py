"""The scoring function of the two reward servers: 1.0 for a right product, 0.0 for a wrong one, and an error for anything else."""

from __future__ import annotations

import re
import time


def score(completions: list[str]) -> list[float | Exception]:
    """Rewards of texts such as ``What is 6 times 7? 42``."""
    time.sleep(0.02 + 0.002 * len(completions))  # the time of a small model
    return [reward(text) for text in completions]


def reward(text: str) -> float | Exception:
    found = re.fullmatch(r"What is (\d+) times (\d+)\? (\d+)", text)
    if found is None:
        return ValueError(f"{text!r} has no product")
    first, second, answer = map(int, found.groups())
    return float(first * second == answer)
