"""Scores without a model: numbers drawn from a hash of what is scored, and words in it that make a server fail.

The raw score (logit) of an item is the first 4 bytes of the SHA-256 of its canonical JSON, as a share of 2**32, stretched over -10 to 10.
An item is a text, ``[prompt, response]``, a list of messages, or a list of token ids; a text drawn by a template is that text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from qreward.testing.text import canonical

NAN = "<<nan>>"
"""An item with this in it has a score that is no number: null from vLLM and SGLang, a failure of the whole list from the others."""
REFUSED = "<<refuse>>"
"""A list that has an item with this in it is refused as a whole, as invalid."""


def score_of(item: Any) -> float:
    """The raw score of an item.

    Example:
        >>> score_of("good") == score_of("good"), -10 <= score_of(["q", "a"]) < 10
        (True, True)
    """
    return int.from_bytes(sha256(canonical(item)).digest()[:4], "big") / 2**32 * 20 - 10


def logits_of(item: Any, labels: Sequence[str]) -> list[float]:
    """A raw score for each class: of the item itself if there is one class, else of ``[label, item]``."""
    return [score_of(item)] if len(labels) == 1 else [score_of([label, item]) for label in labels]


def probabilities_of(logits: Sequence[float]) -> list[float]:
    """The sigmoid of one logit, the softmax of several."""
    if len(logits) == 1:
        return [1 / (1 + math.exp(-logits[0]))]
    return softmax(logits)


def softmax(logits: Sequence[float]) -> list[float]:
    """As of any number of logits, so 1.0 of one."""
    top = max(logits)
    powers = [math.exp(logit - top) for logit in logits]
    return [power / sum(powers) for power in powers]
