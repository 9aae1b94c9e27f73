"""Fake reward servers for a ``FakeFleet``: scores without a model, and markers in an item that make a server fail.

``FakeEndpoint.kind`` selects the server (vLLM, SGLang, TEI, OpenRLHF or NIM), and ``FakeEndpoint.scoring`` configures it. Latency, slots,
rate limits, faults and phases are those of any ``FakeEndpoint``.

Scores are derived from a hash of the item, so a test can compute them. The raw score (logit) of an item is a number from -10 to 10: the
first 4 bytes of the SHA-256 of its canonical JSON as a big-endian integer, divided by 2**32, times 20, minus 10.

An item is a text, ``[prompt, response]``, a list of messages, or a list of
token ids. If the client renders messages with a template, the item is the rendered text.
"""

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
"""An item that contains this marker has the score NaN. vLLM and SGLang return null for it, TEI (HTTP 424) and OpenRLHF (HTTP 500) fail
the whole list, and NIM writes ``nan``. It has no effect on the OpenAI routes."""
REFUSED = "<<refuse>>"
"""A list with an item that contains this marker is refused as a whole, as an invalid request."""


def score_of(item: Any) -> float:
    """The raw score of an item.

    Example:
        >>> score_of("good") == score_of("good"), -10 <= score_of(["q", "a"]) < 10
        (True, True)
    """
    return int.from_bytes(sha256(canonical(item)).digest()[:4], "big") / 2**32 * 20 - 10


def logits_of(item: Any, labels: Sequence[str]) -> list[float]:
    """The raw score for each class: the score of the item itself if there is one class, else the score of ``[label, item]``."""
    return [score_of(item)] if len(labels) == 1 else [score_of([label, item]) for label in labels]


def probabilities_of(logits: Sequence[float]) -> list[float]:
    """The sigmoid of one logit, the softmax of several."""
    if len(logits) == 1:
        return [1 / (1 + math.exp(-logits[0]))]
    return softmax(logits)
