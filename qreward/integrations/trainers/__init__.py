"""The settings and the rewarder that the adapters of all trainers share. A failure becomes a number only if the settings say so."""

from __future__ import annotations

from qreward.integrations.trainers.rewarder import Adapter, Rewarder, rewarder
from qreward.integrations.trainers.settings import Failure, RewardConfig, Source, load_reward_config
from qreward.integrations.trainers.verdicts import Scored

__all__ = ["Adapter", "Failure", "RewardConfig", "Rewarder", "Scored", "Source", "load_reward_config", "rewarder"]
