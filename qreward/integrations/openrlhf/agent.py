"""A file for OpenRLHF's ``--train.agent_func_path``: its single turn, with rewards awaited in its own loop instead of in threads.

The only file that imports OpenRLHF.
"""

from __future__ import annotations

import importlib
from typing import Any

from qreward.integrations.openrlhf.reward_func import reward_func
from qreward.integrations.openrlhf.scoring import results
from qreward.integrations.trainers.settings import load_reward_config

_Executor: Any = importlib.import_module("openrlhf.utils.agent").SingleTurnAgentExecutor


class AgentExecutor(_Executor):  # type: ignore[misc]  # OpenRLHF has no types
    """OpenRLHF's single-turn executor, whose rewards run as many at once as there are samples.

    Args:
        remote_rm_url: taken, and not used: the settings are those of the file that ``QREWARD_REWARD`` names.

    Raises:
        ConfigError: the settings are missing or wrong; when it is made, for later OpenRLHF would only log it.
    """

    def __init__(self, remote_rm_url: object = None) -> None:  # noqa: ARG002
        super().__init__(None)
        load_reward_config()
        self.reward_endpoints = [__file__]  # so that rewards are fetched at all, and from the function below
        self.reward_func = reward_func

    async def _fetch_rewards_via_func(self, queries_list: list[str], prompts_list: list[str], labels_list: list[Any]) -> list[Any]:
        return await results(queries_list, prompts_list, labels_list)
