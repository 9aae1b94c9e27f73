"""Judges for verifiers (v1). All requests of the judges go through one shared client, with its limits, retries and hedges.

verifiers loads a judge from the module that the judge's ``id`` names. This module imports verifiers when a judge is first accessed.
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
