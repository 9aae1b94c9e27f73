"""AReaL's single-turn workflow with rewards that are awaited in its loop: no process pool, no limit of 15 seconds. Imports AReaL."""

from __future__ import annotations

import importlib
from typing import Any

from qreward.integrations.areal.rewards import async_reward
from qreward.integrations.trainers.settings import load_reward_config

_Workflow: Any = importlib.import_module("areal.workflow.rlvr").RLVRWorkflow
_trace: Any = importlib.import_module("areal.utils.perf_tracer").trace_session


class QRewardRLVRWorkflow(_Workflow):  # type: ignore[misc]  # AReaL has no types here
    """``RLVRWorkflow`` without ``reward_fn``: the settings of the rewards are those of the file that ``QREWARD_REWARD`` names.

    A reward that could not be had is raised: AReaL rejects the whole group. ``on_failure: none`` leaves the one trajectory out; AReaL
    then goes on with a smaller group, which its normalization by groups, that counts them off by ``group_size``, does not expect.

    Args:
        arguments: those of ``RLVRWorkflow`` without ``reward_fn``: ``gconfig``, ``tokenizer``, ``enable_thinking``, ...

    Raises:
        ConfigError: the settings are missing or wrong.
    """

    def __init__(self, **arguments: Any) -> None:
        load_reward_config()
        super().__init__("qreward.integrations.areal.async_reward", **arguments)
        self.reward_fn = self.async_reward_fn = async_reward  # not a name any more, so that no process pool is made for it

    @_trace("reward")  # type: ignore[untyped-decorator]
    async def _compute_rewards(self, resp: Any, prompt_str: str, task_data: dict[str, Any]) -> float:
        completion = self.tokenizer.decode(resp.output_tokens)
        found = await async_reward(prompt_str, completion, resp.input_tokens, resp.output_tokens, **task_data)
        if found is None:
            raise _LeftOutError
        return found

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """One trajectory; None if it has no reward, and the settings say ``on_failure: none``."""
        try:
            episode: dict[str, Any] = await super().arun_episode(engine, data)
        except _LeftOutError:
            return None
        return episode


class _LeftOutError(Exception):
    """There is no reward, and the trajectory is to be left out."""
