"""Rewards of a judge or a reward model in SkyRL: an environment of SkyRL-Gym.

Only ``env.py`` imports SkyRL-Gym. It is imported when the environment is first accessed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.integrations.skyrl.env import DEADLINE, QRewardEnv

__all__ = ["DEADLINE", "QRewardEnv"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.env"), name)
