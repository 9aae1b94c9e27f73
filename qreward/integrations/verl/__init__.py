"""Rewards of a judge or a reward model in verl: a reward function and a reward manager. verl loads them by the name of this package.

``reward.custom_reward_function.path=pkg://qreward.integrations.verl`` uses :func:`compute_score`.
``reward.reward_manager.source=importlib`` uses ``QRewardManager``. This class is imported on first access, because only this class
needs verl.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qreward.integrations.verl.function import DEADLINE, compute_score, compute_scores

if TYPE_CHECKING:
    from qreward.integrations.verl.manager import QRewardManager

__all__ = ["DEADLINE", "QRewardManager", "compute_score", "compute_scores"]


def __getattr__(name: str) -> Any:
    if name != "QRewardManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("qreward.integrations.verl.manager").QRewardManager
