"""The reward of a completion, blocking and awaited. Imports nothing of AReaL.

A reward that could not be had is raised, unless the settings choose something else. AReaL asks its process pool again, four times in all,
then rejects the trajectory with its whole group, instead of training on it. Of a time-out of its own it makes a 0, which is why the
blocking function is done before that.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from qreward.engine.portal import portal
from qreward.errors import QRewardError
from qreward.integrations.trainers.rewarder import LATE, Rewarder, reward_of, rewarder
from qreward.integrations.trainers.settings import item_of, named_in_prompts
from qreward.integrations.trainers.texts import without_end

HOST_LIMIT = 15.0
"""Seconds after which ``AsyncRewardWrapper`` gives a call up, waiting for a free worker included."""
DEADLINE = 12.0
"""Seconds for a reward in the process pool."""
WORKFLOW_DEADLINE = 180.0
"""Seconds for a reward that is awaited in a workflow, where AReaL has no limit of its own."""
USUAL = {"prompt": ("messages", "prompt"), "response": ("completions",), "reference": ("answer", "solution", "ground_truth")}

_log = logging.getLogger("qreward.areal")


class NoReward(QRewardError):
    """There was no reward in time. No ``TimeoutError``: of those ``AsyncRewardWrapper`` makes a 0 in the end, as of its own."""


def reward(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any) -> float | None:
    """The reward of one completion, for ``reward_fn`` of AReaL's workflows: in a child of its process pool, forked or spawned.

    Args:
        prompt: as the model got it. A column ``messages`` of the data goes before it.
        completions: what the model answered, with special tokens.
        prompt_ids, completion_ids: tokens; not used, but for templates that name them.
        data: the columns of the data.

    Returns:
        A finite float; None, which AReaL cannot train on and rejects without asking again, if the settings say ``on_failure: none``.

    Raises:
        ConfigError: the settings, those of the file that ``QREWARD_REWARD`` names, are missing or wrong.
        QRewardError: there is no reward, and the settings say nothing else; ``NoReward`` for want of time.
    """
    here = rewarder(deadline=DEADLINE)
    _check(here.deadline)
    try:
        return portal().call(_reward, here, _row(prompt, completions, prompt_ids, completion_ids, data))
    except TimeoutError as error:  # a RequestTimeout is one
        raise NoReward(f"{type(error).__name__}: {error}") from error


async def async_reward(
    prompt: str, completions: str, prompt_ids: list[int] | None = None, completion_ids: list[int] | None = None, **data: Any
) -> float | None:
    """The same, awaited in a workflow: as many at once as there are trajectories, with no process between.

    Example:
        >>> async def score(tokenizer, resp, data):
        ...     prompt, completion = tokenizer.decode(resp.input_tokens), tokenizer.decode(resp.output_tokens)
        ...     return await async_reward(prompt, completion, resp.input_tokens, resp.output_tokens, **data)
    """
    return await _reward(rewarder(deadline=WORKFLOW_DEADLINE), _row(prompt, completions, prompt_ids, completion_ids, data))


def _row(prompt: str, completions: str | None, prompt_ids: object, completion_ids: object, data: dict[str, Any]) -> dict[str, Any]:
    said = None if completions is None else without_end(completions)  # None has no reward; see Rewarder.score
    return {**data, "prompt_ids": prompt_ids, "completion_ids": completion_ids, "prompt": prompt, "completions": said}


async def _reward(here: Rewarder, row: dict[str, Any]) -> float | None:
    assert here.config is not None  # it was made from settings
    scored = await here.score(**item_of(row, here.config.columns, USUAL, named_in_prompts(here.config)))
    if not scored.ok:
        _log.warning("no reward: %s (on_failure: %s)", scored.reason, here.config.on_failure)
    return reward_of(scored, here.config.on_failure, "raise")


@cache
def _check(deadline: float) -> None:
    """Once: say that AReaL's limit comes before ours."""
    if deadline + LATE >= HOST_LIMIT:
        _log.warning(
            "a deadline of %g s is no less than the %g s after which AsyncRewardWrapper makes a reward 0; unless you gave it a longer "
            "timeout_seconds, set a shorter one, or use qreward.integrations.areal.workflow",
            deadline,
            HOST_LIMIT,
        )
