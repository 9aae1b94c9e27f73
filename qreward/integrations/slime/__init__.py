"""Rewards of a judge or a reward model in slime: the functions that ``--custom-rm-path`` and its kin name. Needs no slime.

``scoring`` has the functions, ``failures`` says what becomes of a sample that could not be judged, ``normalizing`` takes it out of its
group.
"""

from __future__ import annotations

from qreward.integrations.slime.normalizing import normalize_rewards
from qreward.integrations.slime.scoring import DEADLINE, group_reward, reward

__all__ = ["DEADLINE", "group_reward", "normalize_rewards", "reward"]
