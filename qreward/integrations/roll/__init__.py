"""Rewards of a judge or a reward model in ROLL.

The package has a reward worker. It also has a rollout loop and a group filter, which drop responses that could not be judged.
``JudgeRewardWorker`` and ``SkippingRolloutLoop`` need ROLL and are imported on first access. Only ``worker`` and ``loop`` import ROLL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qreward.integrations.roll.rewards import DEADLINE, INVALID, InvalidGroupFilter, RewardUnavailable, judge

if TYPE_CHECKING:
    from qreward.integrations.roll.loop import SkippingRolloutLoop
    from qreward.integrations.roll.worker import JudgeRewardWorker

__all__ = ["DEADLINE", "INVALID", "InvalidGroupFilter", "JudgeRewardWorker", "RewardUnavailable", "SkippingRolloutLoop", "judge"]

_NEEDS_ROLL = {"JudgeRewardWorker": "worker", "SkippingRolloutLoop": "loop"}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_ROLL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NEEDS_ROLL[name]}"), name)
