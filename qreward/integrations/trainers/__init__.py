"""What the adapters of all trainers share: their settings, and one rewarder a process that scores and never makes a failure a number.

Knows no trainer; each trainer's room knows its own forms, and this one.
"""

from __future__ import annotations

from qreward.integrations.trainers.rewarder import Rewarder, Scored, rewarder
from qreward.integrations.trainers.settings import RewardConfig, Usual, item_of, load_reward_config, named_in_prompts

__all__ = ["RewardConfig", "Rewarder", "Scored", "Usual", "item_of", "load_reward_config", "named_in_prompts", "rewarder"]
