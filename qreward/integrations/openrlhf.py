"""Rewards for OpenRLHF. Its command line takes the path of this file, as that of a reward function or of an executor without threads.

Only the executor imports OpenRLHF. ``python -m qreward.integrations.openrlhf`` prints the path. OpenRLHF calls the function in threads, at
most ``min(32, cpus + 4)`` at once. If a sample could not be scored and the settings name no number for it, its ``rewards`` are None and its
``scores`` are NaN. With ``--algo.dynamic_filtering_enable``, OpenRLHF then drops the sample with its whole group, and takes another prompt.
Without this option, the run stops when OpenRLHF makes experience of the sample.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterable
from typing import Any

from qreward.engine.portal import portal
from qreward.errors import BadRequest
from qreward.integrations.trainers import Adapter, Scored, load_reward_config
from qreward.integrations.trainers.texts import response_in, without_end

__all__ = ["DEADLINE", "agent_path", "results", "reward_func_path"]

DEADLINE = 180.0
"""Default number of seconds for one reward. OpenRLHF allows a remote reward model this time, and functions any time."""

ADAPTER = Adapter(
    trainer="openrlhf",
    deadline=DEADLINE,
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("label",)},
    missing="none",
    effect="; the sample has no reward: it is dropped with its group under --algo.dynamic_filtering_enable, else the run stops",
)
_UNKNOWN_RESPONSE = (
    "the query does not begin with the prompt, so it is unknown where the response begins; to judge the whole query, set "
    "columns: {response: query}"
)


def reward_func(queries: list[str], prompts: list[str], labels: list[Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG001 - signature
    """Score responses. The function may be called from any number of threads. The settings are in the file that ``QREWARD_REWARD`` names.

    Returns:
        A dict with ``rewards``, ``scores`` and ``extra_logs`` (the metrics of :class:`~qreward.integrations.trainers.Scored`). The values
        are numbers for one query, and lists of numbers for several queries.

    Raises:
        ConfigError: the settings are missing or wrong. OpenRLHF only logs the exceptions of this function, and continues without a reward.
        QRewardError: a reward is missing, and the settings say ``on_failure: raise``.
    """
    found = portal().call(results, queries, prompts, labels)
    if len(found) == 1:
        return found[0]
    logs = {name: [each["extra_logs"][name] for each in found] for name in (found[0]["extra_logs"] if found else ())}
    return {"rewards": [each["rewards"] for each in found], "scores": [each["scores"] for each in found], "extra_logs": logs}


async def results(queries: Iterable[str], prompts: Iterable[str], labels: Iterable[Any]) -> list[dict[str, Any]]:
    """Return one mapping for each sample, in the form that OpenRLHF expects, with ``rewards``, ``scores`` and ``extra_logs``.

    Args:
        queries: prompts and responses as the tokenizer decodes them, with special tokens.
        prompts: the prompts as they were sent to the model.
        labels: the label of each sample; ``""`` for a sample without a label.

    Raises:
        ConfigError: the settings are missing or wrong.
        QRewardError: a reward is missing, and the settings say ``on_failure: raise``.
    """
    made = ADAPTER.rewarder()
    rows: list[dict[str, Any]] = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        response = response_in(query, prompt)
        rows.append({"query": query, "prompt": prompt, "label": label})
        if response is not None:
            rows[-1]["response"] = without_end(response)
    found = []
    for row, judged in zip(rows, await ADAPTER.score(made, rows), strict=True):
        scored = judged if "response" in {*row, *made.config.columns} else Scored(None, BadRequest(_UNKNOWN_RESPONSE), 0.0)
        reward = ADAPTER.reward(scored, made.config)
        logs = scored.metrics(waiting=True)
        found.append({"rewards": reward, "scores": math.nan if reward is None else reward, "extra_logs": logs})
    return found


def reward_func_path() -> str:
    """Return the path for ``--reward.remote_url``."""
    return __file__


def agent_path() -> str:
    """Return the path for ``--train.agent_func_path``, which is this file."""
    return __file__


def __getattr__(name: str) -> Any:
    if name != "AgentExecutor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base: Any = importlib.import_module("openrlhf.utils.agent").SingleTurnAgentExecutor

    class AgentExecutor(base):  # type: ignore[misc]  # OpenRLHF has no types
        """OpenRLHF's single-turn executor, which scores all samples concurrently, without threads.

        Raises:
            ConfigError: the settings are missing or wrong. The constructor raises this error, because OpenRLHF would only log a later one.
        """

        def __init__(self, remote_rm_url: object = None) -> None:  # noqa: ARG002
            super().__init__(None)
            ADAPTER.checked(load_reward_config())
            self.reward_endpoints = [__file__]  # OpenRLHF calls the method below only if this list is not empty
            self.reward_func = reward_func

        async def _fetch_rewards_via_func(self, queries_list: list[str], prompts_list: list[str], labels_list: list[Any]) -> list[Any]:
            return await results(queries_list, prompts_list, labels_list)

    return AgentExecutor


if __name__ == "__main__":
    sys.stdout.write(f"{__file__}\n")
