"""For environments of ROLL's agentic pipelines, which are plain code in threads: a blocking judge function, and a filter of its failures.

Knows neither Ray nor ROLL's classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qreward.integrations.roll.rewards import DEADLINE, Drops
from qreward.integrations.trainers import RewardConfig, rewarder

INVALID = -999.0
"""Reward of a step that could not be judged; ROLL's own environments use the same value."""


def judge(
    prompt: Any,
    response: str,
    *,
    reference: Any = None,
    settings: str | Path | Mapping[str, Any] | RewardConfig | None = None,
    **fields: Any,
) -> float:
    """Judge one response and block until the reward is known. May be called from ``env.step`` in any number of threads.

    Args:
        prompt: a text or a list of messages.
        response: the text to judge.
        reference: the correct answer, if the judge's prompt uses one.
        settings: a file, or a mapping with the same content. None takes the file that ``QREWARD_REWARD`` names.
        fields: other fields that the judge's prompt names.

    Returns:
        The reward. If there is none: the number in ``on_failure``, or else :data:`INVALID`. ROLL trains on :data:`INVALID` like on any
        other number unless ``group_filter_cls: qreward.integrations.roll.InvalidGroupFilter`` drops the group.

    Raises:
        QRewardError: there is no reward and ``on_failure`` is ``raise``.
        ConfigError: the settings are missing or wrong.

    Example:
        ``reward = judge(self.question, answer, reference=self.truth)``
    """
    made = rewarder(settings, deadline=DEADLINE)
    (scored,) = made.score_blocking([{"prompt": prompt, "response": response, "reference": reference, **fields}])
    on_failure = made.config.on_failure if made.config is not None else "default"
    if scored.error is not None and on_failure == "raise":
        raise scored.error
    score = scored.score(INVALID if isinstance(on_failure, str) else on_failure)
    assert score is not None
    return score


class InvalidGroupFilter:
    """Drops a group with a step whose reward is :data:`INVALID`; ROLL then generates another. For ``group_filter_cls`` of an env manager.

    A group is dropped if the score of any episode or step is below half of :data:`INVALID`. The score of an episode is the sum of the
    scores of its steps.

    Raises:
        RewardUnavailable: from ``filter``, when ``MOST_DROPPED`` groups in a row were dropped.
    """

    def __init__(self, config: Any, env_manager_config: Any, mode: str) -> None:  # noqa: ARG002 - ROLL's signature
        self._drops = Drops("groups")

    def filter(self, group_id: int, episode_id: int, group: Iterable[Any]) -> bool:
        """Return True to drop the group. ROLL calls this method."""
        if not any(_is_invalid(rollout) for rollout in group if rollout is not None):
            self._drops.kept()
            return False
        self._drops.dropped()
        self._drops.check(f"group {group_id} of episode {episode_id} has a step that could not be judged")
        return True


def _is_invalid(rollout: Any) -> bool:
    columns = rollout.non_tensor_batch
    return any(score < INVALID / 2 for name in ("episode_scores", "step_scores") for score in _numbers(columns.get(name, ())))


def _numbers(value: Any) -> Iterable[float]:
    """Yield the numbers in nested lists and arrays."""
    if hasattr(value, "__len__") and not isinstance(value, str):
        for inner in value:
            yield from _numbers(inner)
    else:
        yield float(value)
