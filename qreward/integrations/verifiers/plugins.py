"""verifiers' built-in judges over a fleet, and a judge that uses the scorer of an adapter's settings: a ``Judge`` or a reward model."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from qreward.errors import ConfigError
from qreward.integrations.trainers.rewarder import Rewarder, Scored, reward_of, rewarder
from qreward.integrations.trainers.settings import VARIABLE, RewardConfig, item_of, load_reward_config, prompt_fields
from qreward.integrations.verifiers.fleet import DEADLINE, FleetJudge, FleetJudgeConfig
from qreward.results import Usage

vf: Any = importlib.import_module("verifiers.v1")
_judge: Any = importlib.import_module("verifiers.v1.judge")
_types: Any = importlib.import_module("verifiers.v1.types")

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
    """The settings file of :class:`RewardJudge`, and which part of the rollout is scored. The file is validated before a rollout begins.

    Attributes:
        settings: file with :class:`~qreward.integrations.trainers.RewardConfig`; by default the file that ``QREWARD_REWARD`` names. It
            configures the scorer and its endpoints; of verifiers' own settings only ``id``, ``name`` and ``weight`` are used.
        view: ``last_reply`` or ``full_trace``.
    """

    settings: Path | None = None
    view: vf.JudgeView = "last_reply"

    @model_validator(mode="after")
    def _settings_fit(self) -> RewardJudgeConfig:
        if self.settings is not None or os.environ.get(VARIABLE):  # else QREWARD_REWARD may still be set before the first score
            _fitting(load_reward_config(self.settings))
        return self


class RewardJudge(vf.Judge[float, RewardJudgeConfig]):  # type: ignore[misc]
    """Scores a rollout with the settings of an adapter: a ``Judge`` of qreward with votes and parse retries, or a reward model.

    Each vote is recorded on the trace as a call. The first call has the tokens of all.
    """

    async def score(self, task: Any, trace: Any) -> float:
        """Return the reward.

        Raises:
            QRewardError: there is no reward, and the settings choose no number. verifiers then fails the rollout and scores nothing.
            ConfigError: the settings are missing or wrong, or say ``on_failure: none``, which verifiers does not support.
        """
        here: Rewarder = rewarder(self.config.settings, deadline=DEADLINE)
        assert here.config is not None  # it was made from settings
        config = _fitting(here.config)
        row = {**dict(task), "prompt": task.prompt_text, "response": _judge.judge_response(trace, self.config.view)}
        usual = {"prompt": ("prompt",), "response": ("response",), "reference": ("answer",)}
        item = item_of(row, config.columns, usual, prompt_fields(config))
        scored = await here.score(**item)
        self._record(trace, item, scored, config)
        if not scored.ok:
            _log.warning("no reward: %s (on_failure: %s)", scored.reason, config.on_failure)
        found = reward_of(scored, config.on_failure, "raise")
        assert found is not None
        return found

    def _record(self, trace: Any, item: Mapping[str, Any], scored: Scored, config: RewardConfig) -> None:
        """Record the answers, parsed or not, as ``FleetJudge`` does. Without an answer nothing is recorded."""
        models = config.judge.model if config.judge is not None else (config.reward_model,)
        answers: list[tuple[str, str, float | None]]
        if scored.verdict is not None:
            usage = scored.verdict.usage
            answers = [(vote.model, vote.text, vote.score) for vote in scored.verdict.votes]
        else:
            usage = scored.error.usage if scored.error is not None else None
            answers = [] if usage is None else [(", ".join(map(str, models)), "", None)]
        for number, (model, text, score) in enumerate(answers):
            response = vf.JudgeResponse(text=text, parsed=score, usage=None if number else _usage(usage))
            trace.record_judge_call(name=self.reward_name, request={"model": model, **item}, response=response)


def _usage(usage: Usage | None) -> Any:
    if usage is None:
        return None
    return _types.Usage(prompt_tokens=usage.prompt_tokens or 0, completion_tokens=usage.completion_tokens or 0)


def _fitting(config: RewardConfig) -> RewardConfig:
    if config.on_failure == "none":
        raise ConfigError(
            f"{config.place}: on_failure: verifiers has no missing reward; say raise, which is the default and fails the rollout, or the "
            "number that such a reward shall be"
        )
    return config
