"""Rewards for AReaL: a function for its process pool, and a coroutine for workflows, which the pool does not slow down.

Only ``workflow.py`` imports AReaL.
"""

from __future__ import annotations

from qreward.integrations.areal.rewards import DEADLINE, WORKFLOW_DEADLINE, NoReward, async_reward, reward

__all__ = ["DEADLINE", "WORKFLOW_DEADLINE", "NoReward", "async_reward", "reward"]
