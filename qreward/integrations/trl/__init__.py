"""Rewards of a judge or a reward model in TRL: functions for ``reward_funcs`` of ``GRPOTrainer``, ``RLOOTrainer`` and similar trainers.

This package does not import TRL; TRL accepts plain functions.
"""

from __future__ import annotations

from qreward.integrations.trl.functions import combined, judge_reward, reward
from qreward.integrations.trl.scoring import DEADLINE

__all__ = ["DEADLINE", "combined", "judge_reward", "reward"]
