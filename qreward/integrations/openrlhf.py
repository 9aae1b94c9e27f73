"""Rewards for OpenRLHF. Its command line takes the path of this file, as that of a reward function or of an executor without threads.

If a sample has no reward, its ``rewards`` are None and its ``scores`` are NaN, as OpenRLHF's dynamic filtering expects.
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

__all__ = ["results", "reward_func"]

ADAPTER = Adapter(
    trainer="openrlhf",
    deadline=180.0,  # the time that OpenRLHF allows a remote reward model; it allows functions any time
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("label",)},
    missing="none",
    effect="; the sample has no reward: it is dropped with its group under --algo.dynamic_filtering_enable, else the run stops",
)
_UNKNOWN_RESPONSE = (
    "the query does not begin with the prompt, so it is unknown where the response begins; to judge the whole query, set "
    "columns: {response: query}"
)


def reward_func(queries: list[str], prompts: list[str], labels: list[Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG001 - signature
    """Score responses, as :func:`results` does, in any number of threads. The values are lists, or numbers if there is one query.

    The settings are in the file that ``QREWARD_REWARD`` names.

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

    ``queries`` are the ``prompts`` with their responses, as the tokenizer decodes them, with special tokens. The errors are those of
    :func:`reward_func`.
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


def __getattr__(name: str) -> Any:
    if name != "AgentExecutor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base: Any = importlib.import_module("openrlhf.utils.agent").SingleTurnAgentExecutor

    class AgentExecutor(base):  # type: ignore[misc]  # OpenRLHF has no types
        """OpenRLHF's single-turn executor, which scores all samples concurrently, without threads."""

        def __init__(self, remote_rm_url: object = None) -> None:  # noqa: ARG002
            super().__init__(None)
            ADAPTER.checked(load_reward_config())  # OpenRLHF would only log a later ConfigError
            self.reward_endpoints = [__file__]  # OpenRLHF calls the method below only if this list is not empty
            self.reward_func = reward_func

        async def _fetch_rewards_via_func(self, queries_list: list[str], prompts_list: list[str], labels_list: list[Any]) -> list[Any]:
            return await results(queries_list, prompts_list, labels_list)

    return AgentExecutor


if __name__ == "__main__":
    sys.stdout.write(f"{__file__}\n")
