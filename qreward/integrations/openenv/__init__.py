"""Rewards of a judge or a reward model in OpenEnv: a ``Rubric``, and an ``LLMClient`` for rubrics that ask a model themselves.

Only ``rubric.py`` imports OpenEnv. It is imported when one of its classes is first accessed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.integrations.openenv.rubric import DEADLINE, QRewardLLMClient, QRewardRubric

__all__ = ["DEADLINE", "QRewardLLMClient", "QRewardRubric"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.rubric"), name)
