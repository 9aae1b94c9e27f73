"""Rewards of a judge or a reward model in ART: a function in place of ``ruler_score_group``. This module does not import ART."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers import Adapter, Scored, Source
from qreward.integrations.trainers.texts import conversation

__all__ = ["score_group"]

ADAPTER = Adapter(
    trainer="art",
    deadline=300.0,  # ART has no limit
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("reference", "answer", "solution", "ground_truth")},
    missing="none",
    effect="; its trajectory leaves the group",
    no_groups="",
)


async def score_group(group: Any, settings: Source = None) -> Any:
    """Return a new ``TrajectoryGroup`` with the judge's rewards, or None if no trajectory has a reward; ART drops a group that is None.

    A trajectory without a reward is not in the new group, which has its error among its ``exceptions``, as that of a failed rollout.
    ``settings`` is a file, or a mapping with the content of a file. None takes the file that ``QREWARD_REWARD`` names.

    Raises:
        ConfigError: the settings are wrong, or do not fit the data, or a trajectory has additional histories.

    Example:
        ``groups = await art.gather_trajectory_groups(..., after_each=score_group)``
    """
    made = ADAPTER.rewarder(settings)
    scored = await ADAPTER.score(made, _rows(group.trajectories, common=made.config.rank is not None))
    judged: list[Any] = []
    for trajectory, each in zip(group.trajectories, scored, strict=True):
        reward = ADAPTER.reward(each, made.config)
        judged.append(each.error if reward is None else _rewarded(trajectory, each, reward))
    if all(isinstance(each, Exception) for each in judged):
        return None
    rewarded = type(group)(judged, metadata=dict(group.metadata), metrics=dict(group.metrics), logs=list(group.logs))
    rewarded.exceptions = [*group.exceptions, *rewarded.exceptions]
    return rewarded


def _rows(trajectories: Sequence[Any], *, common: bool) -> list[dict[str, Any]]:
    """Return the columns of each trajectory. The response is the last answer; or, if ``common``, all that follows the common beginning."""
    if any(each.additional_histories for each in trajectories):
        raise ConfigError("a trajectory with additional_histories cannot be judged: it has no single conversation")
    every = [each.messages() for each in trajectories]
    begin = 0  # number of messages that all trajectories begin with; each has at least one more
    while common and every and all(messages[begin + 1 :] and messages[begin] == every[0][begin] for messages in every):
        begin += 1
    parts = [conversation(messages[:begin], messages[begin:], whole=common) for messages in every]
    return [
        {**each.metadata, "metadata": each.metadata, "tools": each.tools, "prompt": prompt, "response": response}
        for each, (prompt, response) in zip(trajectories, parts, strict=True)
    ]


def _rewarded(trajectory: Any, scored: Scored, reward: float) -> Any:
    words = [f"judge: {vote.text}" for vote in (scored.verdict.votes if scored.verdict else ()) if vote.text]
    metrics = {**trajectory.metrics, "independent_reward": trajectory.reward, **scored.metrics()}
    return trajectory.model_copy(update={"reward": reward, "metrics": metrics, "logs": [*trajectory.logs, *words]})
