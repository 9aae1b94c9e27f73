"""``RewardBuffer`` and the types of its queries and answers. This package does not depend on HTTP."""

from __future__ import annotations

from qreward.batching.reward_buffer.buffer import RewardBuffer
from qreward.batching.reward_buffer.schemas import BatchAnswer, Mode, Query, ScoreResult, SingletonAnswer

__all__ = ["BatchAnswer", "Mode", "Query", "RewardBuffer", "ScoreResult", "SingletonAnswer"]
