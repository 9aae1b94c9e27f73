"""The reward function of verl, and what it says of a reward: the same keys always, for verl stacks them by the keys of the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qreward.integrations.trainers import RewardConfig, Scored, Usual, item_of, named_in_prompts, rewarder
from qreward.integrations.trainers.rewarder import reward_of as score_of
from qreward.integrations.trainers.settings import Failure
from qreward.integrations.verl.settings import plain, settings_of

DEADLINE = 240.0
"""Seconds for one reward in all; verl's own managers give 300, or none."""

NOTE = "A reward could not be had, which ends the run; with on_failure a number can stand for such a reward instead."

PROMPTS = ("prompt", "question", "problem", "query", "raw_prompt")
USUAL: Usual = {"prompt": PROMPTS, "response": ("solution_str",), "reference": ("ground_truth",)}


async def compute_score(
    data_source: Any, solution_str: str | None, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Reward one response; what verl calls for each sample.

    Args:
        data_source: a column for the judge's prompt, as all of ``extra_info``.
        solution_str: the response; None is one that could not be had, and so is its reward.
        ground_truth: the reference.
        extra_info: has the question: verl gives a function no prompt. By default the first of ``prompt``, ``question``, ``problem``,
            ``query`` that is there; ``columns: {prompt: name}`` says another.
        kwargs: ``reward_kwargs`` of the configuration: ``config``, the settings' file, or settings of
            :class:`~qreward.integrations.trainers.RewardConfig`, or both; and what verl adds.

    Returns:
        ``score``; ``judge_ok``, 1.0 or 0.0 if the score is the number of ``on_failure``; ``judge_error``, a text, ``""`` if ok;
        ``judge_seconds``; ``judge_tokens``, 0.0 if no server told.

    Raises:
        ConfigError: a setting is wrong, or a column is not there.
        QRewardError: the reward could not be had, unless ``on_failure`` is a number.

    Example:
        ``reward.custom_reward_function.path=pkg://qreward.integrations.verl``
        ``+reward.custom_reward_function.reward_kwargs.config=/path/to/reward.yaml``
    """
    extra = extra_info or {}
    row = {**extra, "extra_info": extra, "data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}
    return await reward_of(row, settings_of(kwargs), USUAL)


async def reward_of(row: Mapping[str, Any], config: RewardConfig, usual: Usual) -> dict[str, Any]:
    """Score what the columns of ``row`` have."""
    here = rewarder(config, deadline=DEADLINE)  # which first looks at the settings
    item = plain(item_of(row, config.columns, usual, named_in_prompts(config)))
    return answer(await here.score(**item), config.on_failure)


def answer(scored: Scored, on_failure: Failure) -> dict[str, Any]:
    """What verl is told. Raises the reward's error, unless ``on_failure`` is a number: in verl a reward can be neither absent nor NaN."""
    if scored.error is not None and NOTE not in getattr(scored.error, "__notes__", ()):  # identical samples may share one error
        scored.error.add_note(NOTE)
    return {
        "score": score_of(scored, on_failure, default="raise"),
        "judge_ok": float(scored.ok),
        "judge_error": scored.reason,
        "judge_seconds": scored.seconds,
        "judge_tokens": float(scored.tokens),
    }
