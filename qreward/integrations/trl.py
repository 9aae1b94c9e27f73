"""Rewards of a judge or a reward model in TRL: functions for ``reward_funcs`` of ``GRPOTrainer``, ``RLOOTrainer`` and similar trainers.

This module does not import TRL. The reward functions are coroutine functions, because TRL awaits only coroutine functions.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean
from typing import Any, Literal

from qreward.callables import FunctionKind, kind_of
from qreward.errors import ConfigError
from qreward.integrations.trainers import Adapter, Failure, RewardConfig, Rewarder, Scored, Source, load_reward_config
from qreward.integrations.trainers.texts import rows_of
from qreward.judge.calls import encoded
from qreward.judge.types import Scorer

__all__ = ["combined", "judge_reward", "reward"]

OLDEST = (1, 6)
"""First version of TRL that leaves a completion without any reward out of its group."""
Rewards = list[float | None]
RewardFunction = Callable[..., Awaitable[Rewards]]

ADAPTER = Adapter(
    trainer="trl",
    deadline=300.0,  # TRL has no limit, but waiting ranks time out after 1,800 s
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("reference", "solution", "answer", "ground_truth")},
    missing="none",
    logs=False,
    no_groups="",
)


def reward(
    settings: Source = None,
    *,
    judge: Scorer | None = None,
    name: str = "judge",
    columns: Mapping[str, str] | None = None,
    on_failure: Failure | None = None,
    deadline: float | None = None,
    rank: Literal["scores", "advantages"] | None = None,
) -> RewardFunction:
    """Return a reward function for ``reward_funcs``.

    Args:
        settings: a file, or a mapping with the content of a file (see :class:`~qreward.integrations.trainers.RewardConfig`). None takes the
            file that ``QREWARD_REWARD`` names.
        judge: a scorer, which replaces ``settings``: a ``Judge``, a ``RewardModelScorer``, or your own object with the same
            methods.
        name: name of the function in TRL's logs.
        columns, on_failure, deadline, rank: override the settings. ``on_failure`` is by default ``none`` (needs TRL 1.6) if this is the
            only reward function of the trainer.

    Raises:
        ConfigError: a setting is wrong, or a missing reward would be None and the installed TRL is older than 1.6. A call of the returned
            function raises it if a column does not exist, or if the trainer has several reward functions and ``on_failure`` was not chosen.
        ValueError: both ``settings`` and ``judge`` were passed.

    Example:
        ``GRPOTrainer(model, reward_funcs=reward("reward.yaml"), ...)``
    """
    made = _made(settings, judge, name, columns=columns, on_failure=on_failure, deadline=deadline, rank=rank)

    async def scored(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Any = None,  # noqa: ARG001 - TRL passes them
        **given: Any,
    ) -> Rewards:
        return await _scored(made, name, prompts, completions, given)

    scored.__name__ = scored.__qualname__ = name
    return scored


async def judge_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Any = None,  # noqa: ARG001 - TRL passes them
    *,
    settings: Source = None,
    **given: Any,
) -> Rewards:
    """Return the rewards of a batch of completions. This is a reward function that TRL can call.

    Unlike the functions that :func:`reward` returns, it can be pickled, which ``AsyncGRPOTrainer`` needs for its separate process. The
    settings are in the file that ``QREWARD_REWARD`` names, or given with ``functools.partial(judge_reward, settings="reward.yaml")``.
    """
    return await _scored(_made(settings, None, "judge_reward"), "judge_reward", prompts, completions, given)


def combined(*functions: Callable[..., Any], weights: Sequence[float] | None = None, name: str = "combined") -> RewardFunction:
    """Return one reward function that combines several functions. The result for a completion is the weighted sum of their rewards.

    If one of the functions has no reward for a completion, the sum is None, and TRL does not train on the completion. Without ``combined``,
    TRL would count the missing reward as 0.0. All functions run concurrently. Functions that are not async run in threads.

    Args:
        functions: the functions, as in ``reward_funcs``. Each function is called as TRL would call it.
        weights: the weights, as in ``reward_weights``. By default, each weight is 1.0.
        name: name of the sum in TRL's logs. Each function is logged under the name that TRL would use.

    Raises:
        ValueError: there is no function, two functions have the same name, or the numbers of functions and weights differ; or, by a call of
            the returned function, the numbers of rewards and completions.
        ConfigError: by a call of the returned function: a reward is missing, and the installed TRL is older than 1.6.

    Example:
        ``GRPOTrainer(model, reward_funcs=combined(reward("reward.yaml"), format_reward, weights=[1.0, 0.2]), ...)``
    """
    shares = [1.0] * len(functions) if weights is None else list(weights)
    if not functions or len(shares) != len(functions):
        raise ValueError(f"combined() got {len(functions)} functions and {len(shares)} weights; pass a weight for each function")
    names = [*map(_name, functions)]
    if same := [each for each, times in Counter(names).items() if times > 1]:
        raise ValueError(f"combined() got {len(names)} functions, and {same[0]!r} is the name of several; give each a name of its own")

    async def total(prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **given: Any) -> Rewards:
        every = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **given}
        columns: list[Any] = await asyncio.gather(
            *(each(**every) if kind_of(each) is FunctionKind.AWAITED else asyncio.to_thread(each, **every) for each in functions)
        )
        for each, column in zip(names, columns, strict=True):
            if len(column) != len(prompts):
                raise ValueError(f"the reward function {each!r} returned {len(column)} rewards for {len(prompts)} completions")
            if (log_metric := given.get("log_metric")) is not None:
                # All ranks must log this metric, even without a value. TRL before 1.14 gathers metrics by name, and waits forever for a
                # rank that does not log one of these metrics.
                log_metric(f"rewards/{each}/mean", mean([float(value) for value in column if not _missing(value)]))
        rows = zip(*columns, strict=True)
        rewards = [
            None if any(map(_missing, row)) else sum(float(value) * share for value, share in zip(row, shares, strict=True)) for row in rows
        ]
        if None in rewards:
            refuse_old_trl(name)
        return rewards

    total.__name__ = total.__qualname__ = name
    return total


def _made(settings: Source, judge: Scorer | None, name: str, **overrides: Any) -> Rewarder:
    """Return the rewarder of the settings or of a scorer. Overrides that are not None replace settings."""
    if judge is not None and settings is not None:
        raise ValueError("pass settings or judge, not both")
    chosen = {key: value for key, value in overrides.items() if value is not None}
    if judge is not None:  # the name of the model stands for the scorer
        made = Rewarder(judge, ADAPTER.deadline, ADAPTER.checked(RewardConfig(reward_model=name, **chosen)))
    else:
        made = ADAPTER.rewarder(load_reward_config(settings, over=chosen) if chosen else settings)
    if made.config.on_failure in ("default", "none"):
        refuse_old_trl(name)
    return made


async def _scored(made: Rewarder, name: str, prompts: Sequence[Any], completions: Sequence[Any], given: Mapping[str, Any]) -> Rewards:
    log_metric = given.get("log_metric")
    trainer = getattr(log_metric, "__self__", None)  # the only way to reach the trainer and its other reward functions
    functions = getattr(trainer, "reward_funcs", ())
    if made.config.on_failure == "default" and len(functions) > 1:  # a failure would count as 0.0, which the user must choose
        raise ConfigError(
            f"{name} is one of {len(functions)} reward functions, and TRL counts a missing reward of one of them as 0.0; "
            f"combine them by qreward.integrations.trl.combined(...), or choose on_failure: none (it counts as 0.0), raise, or a number"
        )
    ranks = made.config.rank is not None
    if ranks:
        training = getattr(getattr(trainer, "model", None), "training", True)
        check_groups(name, prompts, getattr(trainer, "num_generations" if training else "num_generations_eval", None), training=training)
    step = getattr(given.get("trainer_state"), "global_step", None)
    scored = await ADAPTER.score(made, rows_of(prompts, completions, given, whole=ranks), step=step)
    if log_metric is not None:
        for metric in Scored(None, None, 0.0).metrics(""):
            total = mean if metric in ("ok", "seconds") else sum
            log_metric(f"{name}/{metric}", total([each.metrics("")[metric] for each in scored]))
    if (log_extra := given.get("log_extra")) is not None:
        log_extra(f"{name}_error", [each.reason for each in scored])
    return [ADAPTER.reward(each, made.config) for each in scored]


def check_groups(name: str, prompts: Sequence[Any], size: Any, *, training: bool = True) -> None:
    """Raise ``ConfigError`` unless each prompt occurs ``size`` times, or a multiple of it. Do nothing if ``size`` is not a number.

    TRL gives each process ``per_device_train_batch_size`` completions, which may end within a group, whose ranks could not be compared.
    """
    if not isinstance(size, int):
        return
    for count in Counter(map(encoded, prompts)).values():
        if count % size:
            raise ConfigError(
                f"{name}: rank needs all completions of a prompt in one process, and this process has {count} of {size}; set "
                f"per_device_{'train' if training else 'eval'}_batch_size to a multiple of num_generations, or leave out rank"
            )


def refuse_old_trl(name: str) -> None:
    """Raise ``ConfigError`` if the installed TRL is older than 1.6, and therefore counts a reward of None as 0.0 and trains on it."""
    try:
        found = version("trl")
    except PackageNotFoundError:
        return  # the version is unknown
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
        raise ConfigError(
            f"{name}: a missing reward is None, which TRL {found} counts as 0.0; install trl>=1.6, or choose on_failure: raise or a number"
        )


def mean(values: Sequence[float]) -> float:
    """Return the mean. Without values, return NaN, which TRL leaves out of its logs."""
    return fmean(values) if values else math.nan


def _name(function: Any) -> str:
    """Return the name of a function, as TRL's ``get_callable_name`` does."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _missing(value: float | None) -> bool:
    """Return whether a reward is missing. A missing reward is None, or NaN, because TRL converts None to NaN. Infinity is no reward."""
    return value is None or not math.isfinite(value)
