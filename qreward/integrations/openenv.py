"""Rewards of a judge or a reward model in OpenEnv, which this module imports: a ``Rubric``."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from qreward.engine.portal import portal
from qreward.integrations.trainers import Adapter, Source

__all__ = ["QRewardRubric"]

ADAPTER = Adapter(
    trainer="openenv",
    deadline=50.0,  # a client of OpenEnv waits 60 seconds for a message by default (message_timeout_s)
    columns={
        "prompt": ("prompt", "question", "task", "instruction"),
        "response": ("response",),
        "reference": ("reference", "answer", "solution", "ground_truth"),
    },
)

_Rubric: Any = importlib.import_module("openenv.core.rubrics").Rubric


class QRewardRubric(_Rubric):  # type: ignore[misc]  # OpenEnv has no types
    """Scores an action with the judge or the reward model of the settings.

    The attribute ``metrics`` has those of the last reward, such as ``judge_ok``.

    Args:
        settings: a file, or a mapping with the content of a file. None takes the file that ``QREWARD_REWARD`` names.

    Raises:
        ConfigError: the settings are missing or wrong.

    Example:
        ``super().__init__(rubric=QRewardRubric("reward.yaml"))`` in the constructor of an ``Environment``
    """

    def __init__(self, settings: Source = None) -> None:
        super().__init__()
        self._settings = settings
        self.metrics: dict[str, float] = {}
        ADAPTER.rewarder(settings)  # a wrong setting fails here, not at the first step

    def forward(self, action: Any, observation: Any) -> float | Coroutine[Any, Any, float | None] | None:
        """Return the reward. In an event loop, as in ``step_async``, return a coroutine for it, which OpenEnv awaits.

        Raises ``QRewardError`` if there is no reward, and the settings do not replace it.
        """
        row = self.row(action, observation)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return portal().call(self._reward, row)
        return self._reward(row)

    def row(self, action: Any, observation: Any) -> dict[str, Any]:
        """Return the columns of a step; override this method to add columns, such as the reference answer of the episode.

        The columns are the fields of the observation, ``action`` and ``observation`` with the fields of both, and ``response``: the value
        of the action's only field, or all of its fields as JSON.
        """
        did, seen = _fields(action), _fields(observation)
        own = {name: value for name, value in did.items() if name != "metadata"}
        response = next(iter(own.values())) if len(own) == 1 else json.dumps(own, default=str, ensure_ascii=False)
        return {**seen, "action": did, "observation": seen, "response": response}

    async def _reward(self, row: dict[str, Any]) -> float | None:
        made = ADAPTER.rewarder(self._settings)
        (scored,) = await ADAPTER.score(made, [row])
        self.metrics = scored.metrics()
        return ADAPTER.reward(scored, made.config)


def _fields(part: Any) -> Mapping[str, Any]:
    if isinstance(part, Mapping):
        return part
    return part.model_dump() if hasattr(part, "model_dump") else {"text": part}
