"""The settings and the rewarder that the adapters of all trainers share.

The rewarder scores responses. It turns a failure into a number only if the settings say so. This package is independent of any trainer. The
adapter of each trainer converts the data of its trainer and uses this package.
"""

from __future__ import annotations

from qreward.integrations.trainers.adapter import Adapter
from qreward.integrations.trainers.rewarder import Rewarder, Scored, rewarder
from qreward.integrations.trainers.settings import RewardConfig, load_reward_config

__all__ = ["Adapter", "RewardConfig", "Rewarder", "Scored", "load_reward_config", "rewarder"]
