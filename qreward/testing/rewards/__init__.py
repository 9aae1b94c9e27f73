"""Fake reward servers for a ``FakeFleet``: they imitate vLLM, SGLang, TEI, OpenRLHF and NIM, and score, label, rank and embed.

Paths, bodies, limits, error formats and availability routes follow the source and documentation of those servers; the fakes have not
been compared with running servers. Scores do not come from a model but from a hash of the text (see ``scoring``), so a test can
compute them. Latency, slots, rate limits, faults and phases are those of any ``FakeEndpoint``. ``FakeEndpoint.kind`` selects the
server, and ``FakeEndpoint.scoring`` configures it.
"""

from __future__ import annotations

from qreward.testing.rewards.scoring import NAN, REFUSED, logits_of, probabilities_of, score_of
from qreward.testing.rewards.settings import Scoring

__all__ = ["NAN", "REFUSED", "Scoring", "logits_of", "probabilities_of", "score_of"]
