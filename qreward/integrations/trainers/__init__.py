"""Shared by the adapters of all trainers: the settings, and the rewarder, which turns a failure into a number only if the settings say so.

This package is independent of any trainer. The adapter of each trainer converts that trainer's data and uses this package.
"""

from __future__ import annotations

from qreward.integrations.trainers.adapter import Adapter
from qreward.integrations.trainers.rewarder import Rewarder, Scored, rewarder
from qreward.integrations.trainers.settings import RewardConfig, load_reward_config

__all__ = ["Adapter", "RewardConfig", "Rewarder", "Scored", "load_reward_config", "rewarder"]
