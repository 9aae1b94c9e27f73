"""verifiers' built-in judges over a fleet, and one that asks the scorer of an adapter's settings: a judge of ours, or a reward model."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers.columns import item_of, named_in_prompts
from qreward.integrations.trainers.failures import reward_of
from qreward.integrations.trainers.rewarder import Rewarder, rewarder
from qreward.integrations.verifiers.fleet import DEADLINE, FleetJudge, FleetJudgeConfig

vf: Any = importlib.import_module("verifiers.v1")
_judge: Any = importlib.import_module("verifiers.v1.judge")

_log = logging.getLogger("qreward.verifiers")


class FleetReferenceJudgeConfig(vf.ReferenceJudgeConfig, FleetJudgeConfig):  # type: ignore[misc]
    """``vf.ReferenceJudgeConfig`` and :class:`FleetJudgeConfig`."""


class FleetReferenceJudge(FleetJudge[float, FleetReferenceJudgeConfig], vf.ReferenceJudge):  # type: ignore[misc, type-arg]
    """``vf.ReferenceJudge`` over a fleet: yes or no, against a reference answer."""


class FleetRubricJudgeConfig(vf.RubricJudgeConfig, FleetJudgeConfig):  # type: ignore[misc]
    """``vf.RubricJudgeConfig`` and :class:`FleetJudgeConfig`."""


class FleetRubricJudge(FleetJudge[Any, FleetRubricJudgeConfig], vf.RubricJudge):  # type: ignore[misc, type-arg]
    """``vf.RubricJudge`` over a fleet: a verdict for each criterion."""


class RewardJudgeConfig(vf.JudgeConfig):  # type: ignore[misc]
    """Which settings, and what of the rollout is scored.

    Attributes:
        settings: file of :class:`~qreward.integrations.trainers.RewardConfig`; by default that of ``QREWARD_REWARD``. It says who
            scores and where; of verifiers' own settings only ``id``, ``name`` and ``weight`` are used.
        view: ``last_reply`` or ``full_trace``.
    """

    settings: Path | None = None
    view: vf.JudgeView = "last_reply"


class RewardJudge(vf.Judge[float, RewardJudgeConfig]):  # type: ignore[misc]
    """Scores a rollout by the settings of an adapter: a ``Judge`` of qreward with votes and re-asks, or a reward model."""

    async def score(self, task: Any, trace: Any) -> float:
        """The reward.

        Raises:
            QRewardError: it could not be had, and the settings choose no number. verifiers then fails the rollout, and scores nothing.
            ConfigError: the settings are missing or wrong, or say ``on_failure: none``, which verifiers has not.
        """
        here: Rewarder = rewarder(self.config.settings, deadline=DEADLINE)
        assert here.config is not None  # it was made from settings
        row = {**dict(task), "prompt": task.prompt_text, "response": _judge.judge_response(trace, self.config.view)}
        usual = {"prompt": ("prompt",), "response": ("response",), "reference": ("answer",)}
        scored = await here.score(**item_of(row, here.config.columns, usual, named_in_prompts(here.config)))
        if not scored.ok:
            _log.warning("no reward: %s (on_failure: %s)", scored.reason, here.config.on_failure)
        found = reward_of(scored, here.config.on_failure, "raise")
        if found is None:
            raise ConfigError("on_failure: none has no meaning to verifiers; say raise (the default) or a number") from scored.error
        return found
