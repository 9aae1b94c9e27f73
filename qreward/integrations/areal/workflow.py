"""AReaL's single-turn workflow, which this module imports, with rewards that are awaited in its event loop without a process pool."""

from __future__ import annotations

import importlib
from typing import Any

from qreward.integrations.areal import WORKFLOW, async_reward, row_of
from qreward.integrations.trainers import load_reward_config

_rlvr: Any = importlib.import_module("areal.workflow.rlvr")
_Workflow: Any = _rlvr.RLVRWorkflow
_trace: Any = importlib.import_module("areal.utils.perf_tracer").trace_session


class QRewardRLVRWorkflow(_Workflow):  # type: ignore[misc]  # AReaL has no types here
    """A ``RLVRWorkflow`` without ``reward_fn``. The settings are in the file that ``QREWARD_REWARD`` names.

    Do not combine ``on_failure: none`` with AReaL's group normalization, which expects exactly ``group_size`` trajectories.

    Raises:
        ConfigError: the settings are missing or wrong.
    """

    def __init__(self, **arguments: Any) -> None:
        WORKFLOW.checked(load_reward_config())
        super().__init__("qreward.integrations.areal.async_reward", **arguments)
        self.reward_fn = self.async_reward_fn = async_reward  # if this were the name of the function, AReaL would make a process pool

    @_trace("reward")  # type: ignore[untyped-decorator]
    async def _compute_rewards(self, resp: Any, prompt_str: str, task_data: dict[str, Any]) -> float:
        completion = self.tokenizer.decode(resp.output_tokens)
        made = WORKFLOW.rewarder()
        (scored,) = await WORKFLOW.score(made, [row_of(prompt_str, completion, resp.input_tokens, resp.output_tokens, task_data)])
        _rlvr.stats_tracker.get(_rlvr.workflow_context.stat_scope()).scalar(**scored.metrics())
        found = WORKFLOW.reward(scored, made.config)
        if found is None:
            raise _LeftOutError
        return found

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """Run one trajectory, and return its episode. Return None if its reward is missing and the settings say ``on_failure: none``."""
        try:
            return await super().arun_episode(engine, data)  # type: ignore[no-any-return]
        except _LeftOutError:
            return None


class _LeftOutError(Exception):
    """The reward is missing, and the trajectory is left out."""
