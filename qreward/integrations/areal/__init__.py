"""Rewards for AReaL: ``reward`` for its process pool, and ``async_reward`` for workflows. Only ``workflow.py`` imports AReaL."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from typing import Any

from qreward.engine.portal import portal
from qreward.errors import QRewardError
from qreward.integrations.trainers import Adapter, Rewarder
from qreward.integrations.trainers.rewarder import LATE
from qreward.integrations.trainers.texts import without_end

__all__ = ["NoReward", "async_reward", "reward"]

HOST_LIMIT = 15.0
"""Seconds after which ``AsyncRewardWrapper`` abandons a call, including the wait for a free worker process."""

ADAPTER = Adapter(
    trainer="areal",
    deadline=12.0,  # less than HOST_LIMIT
    columns={"prompt": ("messages", "prompt"), "response": ("completions",), "reference": ("answer", "solution", "ground_truth")},
)
WORKFLOW = replace(ADAPTER, deadline=180.0)  # AReaL does not limit the time of a reward that is awaited


class NoReward(QRewardError):
    """No reward arrived in time. It is no ``TimeoutError``, which AReaL's ``AsyncRewardWrapper`` turns into a reward of 0."""


def reward(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any) -> float | None:
    """Score one completion. This function is for ``reward_fn`` of AReaL's workflows, which runs in a child process of AReaL's process pool.

    The result is None if there is no reward and the settings say ``on_failure: none``; AReaL then rejects the trajectory.

    Raises:
        ConfigError: the settings in the file that ``QREWARD_REWARD`` names are missing or wrong.
        QRewardError: there is no reward, and ``on_failure`` does not replace it. If the time ran out, it is a ``NoReward``.
    """
    made = ADAPTER.rewarder()
    _warn_of_late(made.deadline)
    try:
        return portal().call(_reward, made, row_of(prompt, completions, prompt_ids, completion_ids, data))
    except TimeoutError as error:  # a RequestTimeout is a TimeoutError too
        raise NoReward(f"{type(error).__name__}: {error}") from error


async def async_reward(
    prompt: str, completions: str, prompt_ids: list[int] | None = None, completion_ids: list[int] | None = None, **data: Any
) -> float | None:
    """Score one completion in a workflow that awaits it. All trajectories are scored concurrently, because no process pool limits them.

    It is as :func:`reward`, except that ``RequestTimeout`` is raised if the time runs out.

    Example:
        >>> async def score(tokenizer, resp, data):
        ...     prompt, completion = tokenizer.decode(resp.input_tokens), tokenizer.decode(resp.output_tokens)
        ...     return await async_reward(prompt, completion, resp.input_tokens, resp.output_tokens, **data)
    """
    return await _reward(WORKFLOW.rewarder(), row_of(prompt, completions, prompt_ids, completion_ids, data))


def row_of(prompt: str, completions: str | None, prompt_ids: object, completion_ids: object, data: dict[str, Any]) -> dict[str, Any]:
    response = None if completions is None else without_end(completions)  # None gets no reward; see Rewarder.score
    return {**data, "prompt_ids": prompt_ids, "completion_ids": completion_ids, "prompt": prompt, "completions": response}


async def _reward(made: Rewarder, row: dict[str, Any]) -> float | None:
    (scored,) = await ADAPTER.score(made, [row])
    return ADAPTER.reward(scored, made.config)


@cache
def _warn_of_late(deadline: float) -> None:
    if deadline + LATE >= HOST_LIMIT:
        what = f"a deadline of {deadline:g} s is too long for AsyncRewardWrapper, which returns a reward of 0 after {HOST_LIMIT:g} s"
        remedy = "use qreward.integrations.areal.workflow, or ignore this if you set a longer timeout_seconds"
        logging.getLogger("qreward.areal").warning("%s; set a shorter deadline, %s", what, remedy)
