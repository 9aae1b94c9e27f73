"""A file for OpenRLHF's ``--train.agent_func_path``: OpenRLHF's single-turn executor, which awaits rewards without threads."""

from __future__ import annotations

import importlib
from typing import Any

from qreward.integrations.openrlhf import ADAPTER, results, reward_func
from qreward.integrations.trainers import load_reward_config

_Executor: Any = importlib.import_module("openrlhf.utils.agent").SingleTurnAgentExecutor


class AgentExecutor(_Executor):  # type: ignore[misc]  # OpenRLHF has no types
    """OpenRLHF's single-turn executor, which scores all samples concurrently.

    Raises:
        ConfigError: the settings are missing or wrong. The constructor raises this error, because OpenRLHF would only log a later error.
    """

    def __init__(self, remote_rm_url: object = None) -> None:  # noqa: ARG002
        super().__init__(None)
        ADAPTER.checked(load_reward_config())
        self.reward_endpoints = [__file__]  # OpenRLHF calls the method below only if this list is not empty
        self.reward_func = reward_func

    async def _fetch_rewards_via_func(self, queries_list: list[str], prompts_list: list[str], labels_list: list[Any]) -> list[Any]:
        return await results(queries_list, prompts_list, labels_list)
