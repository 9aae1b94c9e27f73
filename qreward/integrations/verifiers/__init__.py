"""Judges for verifiers (v1) whose calls share one client, and so the limits, retries and hedges of a whole fleet.

A judge is a plug-in of verifiers if the module that its ``id`` names exports it. verifiers is imported on first access to a judge.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.integrations.verifiers.judges import (
        FleetDecisionJudge,
        FleetDecisionJudgeConfig,
        FleetJudge,
        FleetJudgeConfig,
        FleetReferenceJudge,
        FleetReferenceJudgeConfig,
        FleetRubricJudge,
        FleetRubricJudgeConfig,
        RewardJudge,
        RewardJudgeConfig,
    )

__all__ = [
    "FleetDecisionJudge",
    "FleetDecisionJudgeConfig",
    "FleetJudge",
    "FleetJudgeConfig",
    "FleetReferenceJudge",
    "FleetReferenceJudgeConfig",
    "FleetRubricJudge",
    "FleetRubricJudgeConfig",
    "RewardJudge",
    "RewardJudgeConfig",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.judges"), name)
