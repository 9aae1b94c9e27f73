"""Fakes of servers that score, label, rank and embed: vLLM-, SGLang-, TEI-, OpenRLHF- and NIM-shaped, on the fake fleet's machinery.

Shaped after those servers' source and documentation, not run against them: paths, bodies, limits, forms of errors and availability
routes are theirs; scores are not a model's but drawn from a hash of the text (see ``scoring``), so that a test can know them.
Latency, slots, rates, faults and phases are those of any ``FakeEndpoint``; ``kind`` says which server it is, ``scoring`` how it scores.
"""

from __future__ import annotations

from qreward.testing.rewards.scoring import NAN, REFUSED, logits_of, probabilities_of, score_of
from qreward.testing.rewards.settings import Scoring

__all__ = ["NAN", "REFUSED", "Scoring", "logits_of", "probabilities_of", "score_of"]
