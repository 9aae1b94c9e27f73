"""Fake reward servers for a ``FakeFleet``: scores that need no model, and markers that make a server fail on an item."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from qreward.testing.spec import Scoring
from qreward.testing.synthetic_judge import softmax
from qreward.testing.text import canonical

__all__ = ["NAN", "REFUSED", "Scoring", "logits_of", "probabilities_of", "score_of"]

NAN = "<<nan>>"
"""Marker that gives an item the score NaN. vLLM and SGLang return null for the item. TEI (HTTP 424) and OpenRLHF (HTTP 500) fail the whole
list. NIM writes ``nan``. The marker has no effect on the OpenAI routes."""
REFUSED = "<<refuse>>"
"""Marker that makes a server refuse the whole list that contains the item, as an invalid request."""


def score_of(item: Any) -> float:
    """Return the raw score of an item.

    Example:
        >>> score_of("good") == score_of("good"), -10 <= score_of(["q", "a"]) < 10
        (True, True)
    """
    return int.from_bytes(sha256(canonical(item)).digest()[:4], "big") / 2**32 * 20 - 10


def logits_of(item: Any, labels: Sequence[str]) -> list[float]:
    """Return the raw score of an item for each class."""
    return [score_of(item)] if len(labels) == 1 else [score_of([label, item]) for label in labels]


def probabilities_of(logits: Sequence[float]) -> list[float]:
    """Return the sigmoid of a single logit, or the softmax of several logits."""
    if len(logits) == 1:
        return [1 / (1 + math.exp(-logits[0]))]
    return softmax(logits)
