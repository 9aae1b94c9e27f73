"""Rewards of a judge or a reward model in ROLL: a reward worker, a rollout loop and a group filter that drop what could not be judged.

ROLL drops unknown keys of a worker, but does not validate ``reward_manager_config``, a list of mappings, which has the settings.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from typing import Any

from qreward.errors import ConfigError, QRewardError
from qreward.integrations.trainers import Adapter, RewardConfig, Rewarder, Scored, Source, load_reward_config
from qreward.integrations.trainers.settings import SCORERS, VARIABLE, merged

__all__ = ["INVALID", "InvalidGroupFilter", "RewardUnavailable", "judge"]

PROMPTS, RESPONSES = "prompts", "responses"
"""Columns of the decoded texts. ROLL uses these names for the tokens of the texts."""
LARGEST = 65504.0
"""Largest finite number in float16, in which ROLL stores rewards (IEEE 754 binary16)."""
MOST_DROPPED = 100
"""Number of prompts or groups dropped in a row after which the run ends, because judging then probably fails for every prompt."""
INVALID = -999.0
"""Reward of a step that could not be judged; ROLL's own environments use the same value."""

ADAPTER = Adapter(
    trainer="roll",
    deadline=300.0,  # ROLL has no limit
    columns={"prompt": ("messages", PROMPTS), "response": (RESPONSES,), "reference": ("ground_truth",)},
    none_unsupported=(
        "where each row must have a number; use raise (the default) with user_defined_rollout_loop_cls: "
        "qreward.integrations.roll.SkippingRolloutLoop to drop the prompt, or set a number"
    ),
)


class RewardUnavailable(QRewardError):
    """A reward is missing, and the settings name no number for it. This error ends ROLL's run unless ``SkippingRolloutLoop`` is used."""


def settings_of(worker: Any, prompts: Mapping[str, str]) -> RewardConfig:
    """Return the settings of one reward worker. ROLL's keys override the settings file, and ``reward_manager_config`` overrides both.

    ``worker`` is ROLL's ``RewardConfig`` of the domain, and ``prompts`` are ROLL's own prompts: name -> template. Raises ``ConfigError``.
    """
    file = (getattr(worker, "system_envs", None) or {}).get(VARIABLE) or os.environ.get(VARIABLE)
    entries = getattr(worker, "reward_manager_config", None) or []
    if isinstance(entries, Mapping) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError("reward_manager_config must be a list of mappings, such as [{deadline: 120, judge: {samples: 3}}]")
    settings: dict[str, Any] = reduce(merged, [_settings_of_rolls_judge(worker, prompts), *entries], {})
    if not file and not settings.keys() & SCORERS:
        raise ConfigError(
            "no judge is configured; set judge_model_name, or judge, reward_model or cascade in reward_manager_config, "
            f"or name a file with them in system_envs: {{{VARIABLE}: /path/reward.yaml}}"
        )
    if not file:
        return load_reward_config(settings)
    return load_reward_config(file, over=settings, place=f"{file} and the settings of the worker")  # so that the file is not watched


def _settings_of_rolls_judge(worker: Any, prompts: Mapping[str, str]) -> dict[str, Any]:
    names = ("judge_model_name", "judge_api_url", "judge_api_key", "judge_prompt", "judge_model_type")
    model, urls, key, prompt, kind = (getattr(worker, name, None) for name in names)
    if kind not in (None, "api"):
        raise ConfigError(
            f"judge_model_type: {kind} makes ROLL run the judge itself; serve the judge (vLLM, SGLang, ...), remove judge_model_type, "
            "and set judge_api_url to its address (several addresses are separated by commas)"
        )
    if key and not urls:
        raise ConfigError("judge_api_key is set without judge_api_url; set judge_api_url too")
    judge: dict[str, Any] = {"model": model} if model else {}
    if prompt:
        template = prompts.get(prompt, prompt)
        if "{" not in template:
            known = ", ".join(map(repr, sorted(prompts)))
            raise ConfigError(f"judge_prompt {prompt!r} is neither a template nor the name of one of ROLL's prompts, which are {known}")
        judge["prompt"] = template.replace("{question}", "{prompt}")  # ROLL's templates name the prompt ``question``
        if prompt in prompts:  # all of ROLL's own prompts ask for a bare YES or NO
            judge |= {"verdict": "yes_no", "response_format": "none"}
    found: dict[str, Any] = {"judge": judge} if judge else {}
    if urls:
        account = {"api_key": key} if key else {}
        found["client"] = {"endpoints": [{"base_url": url.strip(), **account} for url in urls.split(",") if url.strip()]}
    return found


def failure_of(config: RewardConfig) -> float | None:
    """Return the number that replaces a missing reward, or None if an error is raised instead. Raises ``ConfigError`` if ROLL cannot."""
    chosen = ADAPTER.checked(config).on_failure
    return None if isinstance(chosen, str) else _fitting(chosen)


def rows_of(columns: Mapping[str, Sequence[Any]], prompts: Sequence[str], responses: Sequence[str]) -> list[dict[str, Any]]:
    """Return one mapping for each row. It has the columns of the data, and the decoded ``prompts`` and ``responses``."""
    texts: dict[str, Sequence[Any]] = {PROMPTS: prompts, RESPONSES: responses}
    whole = {name: values for name, values in columns.items() if len(values) == len(responses)} | texts
    rows = [dict(zip(whole, values, strict=True)) for values in zip(*whole.values(), strict=True)]
    for row in rows:
        if isinstance(row.get("messages"), str):  # in ROLL's data sets, a conversation is a list or JSON text
            with suppress(ValueError):
                row["messages"] = json.loads(row["messages"])
    return rows


async def judge_rows(
    rewarder: Rewarder, rows: Iterable[Mapping[str, Any]], step: int | None = None
) -> tuple[list[float], dict[str, list[float]]]:
    """Score all rows concurrently. Return the rewards in the order of the rows, and the metrics: name -> one number for each row.

    Raises ``RewardUnavailable`` if a reward is missing and ``on_failure`` names no number, and ``ConfigError`` if a reward does not fit
    into float16.
    """
    scored = await ADAPTER.score(rewarder, rows, step=step)
    failure = failure_of(rewarder.config)
    lost = [each for each in scored if not each.ok]
    if lost and failure is None:
        raise RewardUnavailable(
            f"{len(lost)} of {len(scored)} rewards are missing; the first: {lost[0].reason}. To continue without them, set "
            "user_defined_rollout_loop_cls: qreward.integrations.roll.SkippingRolloutLoop, or choose a number in on_failure"
        )
    rewards = [_fitting(float(score)) for each in scored if (score := each.score(failure)) is not None]
    return rewards, metrics_of(scored)


def metrics_of(scored: Sequence[Scored]) -> dict[str, list[float]]:
    """Return the metrics of a batch. The names of the metrics are the same for all batches."""
    rows = [each.metrics("judge/", waiting=True) | {"judge/errors": float(not each.ok)} for each in scored]
    names = [*Scored(None, None, 0.0).metrics("judge/", waiting=True), "judge/errors"]
    return {name: [row[name] for row in rows] for name in names}


def _fitting(score: float) -> float:
    if not math.isfinite(score) or abs(score) > LARGEST:
        raise ConfigError(f"a reward of {score:g} does not fit into ROLL's float16; scale the scores, such as by judge.range")
    return score


def check_dropped(in_a_row: int, what: str, reason: str) -> None:
    """Raise :class:`RewardUnavailable` if ``MOST_DROPPED`` or more prompts or groups were dropped in a row.

    If all endpoints are down, the run would otherwise generate responses forever.
    """
    if in_a_row >= MOST_DROPPED:
        raise RewardUnavailable(f"{in_a_row} {what} in a row were dropped, because rewards are missing. The last: {reason}")


_ENVIRONMENTS = replace(ADAPTER, missing=INVALID, none_unsupported="", logs=False)


def judge(prompt: Any, response: str, *, reference: Any = None, settings: Source = None, **fields: Any) -> float:
    """Judge one response and block until the reward is known. ``env.step`` may call this function in any number of threads.

    ``settings`` is a file, or a mapping with its content. None takes the file that ``QREWARD_REWARD`` names. If there is no reward, return
    the number in ``on_failure``, or :data:`INVALID` if ``on_failure`` is not a number. ROLL trains on :data:`INVALID`, unless
    ``group_filter_cls: qreward.integrations.roll.InvalidGroupFilter`` drops the group.

    Raises:
        QRewardError: there is no reward and ``on_failure`` is ``raise``.
        ConfigError: the settings are missing or wrong.

    Example:
        ``reward = judge(self.question, answer, reference=self.truth)``
    """
    made = _ENVIRONMENTS.rewarder(settings)
    (scored,) = made.score_blocking([{"prompt": prompt, "response": response, "reference": reference, **fields}])
    reward = _ENVIRONMENTS.reward(scored, made.config)
    return INVALID if reward is None else reward


class InvalidGroupFilter:
    """Drops a group with a step whose reward is :data:`INVALID`, for ``group_filter_cls``. ROLL then generates another group.

    A group is dropped if the score of an episode, which is the sum of its steps, or of a step is below half of :data:`INVALID`.

    Raises:
        RewardUnavailable: from ``filter``, when ``MOST_DROPPED`` groups in a row were dropped.
    """

    def __init__(self, config: Any, env_manager_config: Any, mode: str) -> None:  # noqa: ARG002 - ROLL's signature
        self._dropped = 0

    def filter(self, group_id: int, episode_id: int, group: Iterable[Any]) -> bool:
        """Return True if the group must be dropped. ROLL calls this method."""
        columns = [rollout.non_tensor_batch for rollout in group if rollout is not None]
        scores = [score for each in columns for name in ("episode_scores", "step_scores") for score in _numbers(each.get(name, ()))]
        is_dropped = any(score < INVALID / 2 for score in scores)
        self._dropped = self._dropped + 1 if is_dropped else 0
        check_dropped(self._dropped, "groups", f"group {group_id} of episode {episode_id} has a step that could not be judged")
        return is_dropped


def _numbers(value: Any) -> Iterable[float]:
    """Yield the numbers in nested lists and arrays."""
    if hasattr(value, "__len__") and not isinstance(value, str):
        for inner in value:
            yield from _numbers(inner)
    else:
        yield float(value)


def __getattr__(name: str) -> Any:
    if name not in ("JudgeRewardWorker", "SkippingRolloutLoop"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("qreward.integrations.roll.worker"), name)
