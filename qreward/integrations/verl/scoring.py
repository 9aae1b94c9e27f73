"""The reward function for verl. Its results always have the same keys, because verl stacks results by the keys of the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qreward.integrations.trainers import DefaultColumns, RewardConfig, Scored, item_of, prompt_fields, rewarder
from qreward.integrations.trainers.rewarder import reward_of as score_of
from qreward.integrations.trainers.settings import Failure
from qreward.integrations.verl.settings import plain, settings_of

DEADLINE = 240.0
"""Default number of seconds for one reward. verl's own managers allow 300, or have no limit."""

NOTE = "A reward could not be had, which ends the run; with on_failure a number can stand for such a reward instead."

PROMPTS = ("prompt", "question", "problem", "query", "raw_prompt")
DEFAULT_COLUMNS: DefaultColumns = {"prompt": PROMPTS, "response": ("solution_str",), "reference": ("ground_truth",)}


async def compute_score(
    data_source: Any, solution_str: str | None, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Score one response. verl calls this function for each sample.

    Args:
        data_source: a column for the judge's prompt, like all entries of ``extra_info``.
        solution_str: the response. None means that there is no response, and therefore no reward.
        ground_truth: the reference.
        extra_info: must hold the question, because verl passes no prompt to a reward function. By default the first of ``prompt``,
            ``question``, ``problem``, ``query``, ``raw_prompt`` that is present; ``columns: {prompt: name}`` selects another.
        kwargs: ``reward_kwargs`` of the configuration: ``config``, the path of a settings file, or settings of
            :class:`~qreward.integrations.trainers.RewardConfig`, or both; and verl's own additions.

    Returns:
        A dict with ``score``; ``judge_ok``, 1.0, or 0.0 if the score is the number of ``on_failure``; ``judge_error``, a text, ``""`` on
        success; ``judge_seconds``; and ``judge_tokens``, 0.0 if no server reported any.

    Raises:
        ConfigError: a setting is wrong, or a column does not exist.
        QRewardError: there is no reward and ``on_failure`` is not a number.

    Example:
        ``reward.custom_reward_function.path=pkg://qreward.integrations.verl``
        ``+reward.custom_reward_function.reward_kwargs.config=/path/to/reward.yaml``
    """
    extra = extra_info or {}
    row = {**extra, "extra_info": extra, "data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}
    return await reward_of(row, settings_of(kwargs), DEFAULT_COLUMNS)


async def reward_of(row: Mapping[str, Any], config: RewardConfig, usual: DefaultColumns) -> dict[str, Any]:
    """Score the item in the columns of ``row``."""
    here = rewarder(config, deadline=DEADLINE)  # first, as it checks the settings
    item = plain(item_of(row, config.columns, usual, prompt_fields(config)))
    return answer(await here.score(**item), config.on_failure)


def answer(scored: Scored, on_failure: Failure) -> dict[str, Any]:
    """Return the result for verl.

    Raises:
        QRewardError: there is no reward and ``on_failure`` is not a number. In verl a reward can be neither absent nor NaN.
    """
    if scored.error is not None and NOTE not in getattr(scored.error, "__notes__", ()):  # identical samples may share one error
        scored.error.add_note(NOTE)
    return {
        "score": score_of(scored, on_failure, default="raise"),
        "judge_ok": float(scored.ok),
        "judge_error": scored.reason,
        "judge_seconds": scored.seconds,
        "judge_tokens": float(scored.tokens),
    }
