"""Rewards of a judge or a reward model in slime: functions for ``--custom-rm-path`` and related options. Does not need slime.

``scoring`` has the functions, ``failures`` decides what replaces a missing reward, and ``normalizing`` excludes such samples from the
statistics of their group.
"""

from __future__ import annotations

from qreward.integrations.slime.normalizing import normalize_rewards
from qreward.integrations.slime.scoring import DEADLINE, group_reward, reward

__all__ = ["DEADLINE", "group_reward", "normalize_rewards", "reward"]
