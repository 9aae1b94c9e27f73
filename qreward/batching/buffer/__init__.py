"""RewardBuffer, and the words of its queries and answers. Knows batches and scorers; knows no HTTP."""

from __future__ import annotations

from qreward.batching.buffer.buffer import RewardBuffer
from qreward.batching.buffer.queries import BatchAnswer, Mode, Query, SingletonAnswer
from qreward.batching.buffer.scored import Scored

__all__ = ["BatchAnswer", "Mode", "Query", "RewardBuffer", "Scored", "SingletonAnswer"]
