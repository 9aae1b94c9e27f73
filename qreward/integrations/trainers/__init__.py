"""Shared by the adapters of all trainers: the settings, and one rewarder per process that never turns a failure into a number by itself.

This package knows no trainer. The adapter of each trainer converts that trainer's data and uses this package.
"""

from __future__ import annotations

from qreward.integrations.trainers.adapter import Adapter
from qreward.integrations.trainers.rewarder import Rewarder, Scored, rewarder
from qreward.integrations.trainers.settings import RewardConfig, load_reward_config

__all__ = ["Adapter", "RewardConfig", "Rewarder", "Scored", "load_reward_config", "rewarder"]
