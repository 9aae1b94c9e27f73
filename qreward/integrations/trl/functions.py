"""The reward functions that a user passes to a TRL trainer: coroutine functions, because TRL detects async functions that way."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qreward.integrations.trainers import RewardConfig, Rewarder, load_reward_config, rewarder
from qreward.integrations.trainers.settings import Failure
from qreward.integrations.trl.scoring import DEADLINE, RewardSpec, mean, refuse_old_trl
from qreward.judge.types import Scorer

Settings = str | Path | Mapping[str, Any] | RewardConfig
Rewards = list[float | None]
RewardFunction = Callable[..., Awaitable[Rewards]]


def reward(
    settings: Settings | None = None,
    *,
    judge: Scorer | None = None,
    name: str = "judge",
    columns: Mapping[str, str] | None = None,
    on_failure: Failure | None = None,
    deadline: float | None = None,
) -> RewardFunction:
    """Make a reward function for ``reward_funcs``.

    Args:
        settings: a file, or a mapping with the same content (see :class:`~qreward.integrations.trainers.RewardConfig`). None takes the file
            that ``QREWARD_REWARD`` names.
        judge: a scorer in place of ``settings``: a ``Judge``, a ``RewardModelScorer``, or an object of your own with their methods.
        name: name of the function in TRL's logs.
        columns: field of the item -> column of the dataset; overrides the settings. By default the prompt and the completion are TRL's, the
            reference is the first of ``reference``, ``solution``, ``answer``, ``ground_truth`` that is present, and each other field that
            the judge's prompt names is the column of the same name.
        on_failure: what replaces a missing reward; overrides the settings. One of ``none`` (which ``default`` means if this is the only
            reward function; needs TRL 1.6), ``raise``, or a number.
        deadline: seconds for one reward, all requests included; overrides the settings. 300 by default.

    Raises:
        ConfigError: at once if a setting is wrong, or if a missing reward would be None and the installed TRL is older than 1.6. From the
            returned function if a column does not exist, or if the trainer has several functions and ``on_failure`` was not chosen, because
            TRL would count a missing reward as 0.0.
        ValueError: both ``settings`` and ``judge`` were passed.

    Example:
        ``GRPOTrainer(model, reward_funcs=reward("reward.yaml"), ...)``
    """
    recipe = _recipe(settings, judge, name, columns, on_failure, deadline)

    async def scored(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Any = None,  # noqa: ARG001 - TRL passes them
        **given: Any,
    ) -> Rewards:
        return await recipe(prompts, completions, given)

    scored.__name__ = scored.__qualname__ = name
    return scored


async def judge_reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Any = None,  # noqa: ARG001 - TRL passes them
    *,
    settings: Settings | None = None,
    **given: Any,
) -> Rewards:
    """Reward the completions of a batch, as TRL calls a reward function.

    Unlike the functions that :func:`reward` makes, this one can be pickled. ``AsyncGRPOTrainer`` needs that, because it runs reward
    functions in a separate process. The settings are the file that ``QREWARD_REWARD`` names, or those of
    ``functools.partial(judge_reward, settings="reward.yaml")``.
    """
    return await _recipe(settings, None, "judge_reward", None, None, None)(prompts, completions, given)


def combined(*functions: Callable[..., Any], weights: Sequence[float] | None = None, name: str = "combined") -> RewardFunction:
    """Make one reward function from several. It returns their weighted sum, or None for a completion for which one of them has no reward.

    A completion that a judge could not score is thereby left out of its group's baseline and contributes nothing, whatever the other
    functions return for it. TRL itself would count the missing reward as 0.0. All functions run concurrently, plain functions in threads.

    Args:
        functions: the functions, as in ``reward_funcs``. Each is called as TRL would call it.
        weights: the weights, as in ``reward_weights``; 1.0 each by default.
        name: name of the sum in TRL's logs. Each function is logged under the name that TRL would use. If several functions have the same
            name, ``_2`` is appended to the second, and so on.

    Raises:
        ValueError: there is no function, or the numbers of functions and weights differ. From the returned function: one returned too few
            or too many rewards.
        ConfigError: from the returned function: a reward is missing and the installed TRL is older than 1.6.

    Example:
        ``GRPOTrainer(model, reward_funcs=combined(reward("reward.yaml"), format_reward, weights=[1.0, 0.2]), ...)``
    """
    shares = [1.0] * len(functions) if weights is None else list(weights)
    if not functions or len(shares) != len(functions):
        raise ValueError(f"{len(functions)} functions and {len(shares)} weights were given; give at least one function, a weight for each")
    labels = _labels(functions)

    async def total(prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **given: Any) -> Rewards:
        every = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **given}
        calls = zip(functions, labels, strict=True)
        columns = await asyncio.gather(*(_called(function, _logging_as(label, function, every)) for function, label in calls))
        for label, column in zip(labels, columns, strict=True):
            _check(label, column, len(prompts), given)
        rewards = [_sum(row, shares) for row in zip(*columns, strict=True)]
        if None in rewards:
            refuse_old_trl(name)
        return rewards

    total.__name__ = total.__qualname__ = name
    return total


def _recipe(
    settings: Settings | None,
    judge: Scorer | None,
    name: str,
    columns: Mapping[str, str] | None,
    on_failure: Failure | None,
    deadline: float | None,
) -> RewardSpec:
    if judge is not None and settings is not None:
        raise ValueError("pass settings or judge, not both")
    given = {"columns": columns, "on_failure": on_failure, "deadline": deadline}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if judge is not None:
        config = RewardConfig(reward_model=name, **chosen)  # a placeholder model; only `chosen` is validated
        return _recipe_of(Rewarder(judge, config.deadline or DEADLINE), name, config)
    made = rewarder(settings, deadline=DEADLINE)
    config = made.config or load_reward_config(settings)
    if chosen:
        chosen["columns"] = {**config.columns, **(columns or {})}
        config = RewardConfig(**dict(config) | chosen).at(config.place)
        made = rewarder(config, deadline=DEADLINE)
    return _recipe_of(made, name, config)


def _recipe_of(made: Rewarder, name: str, config: RewardConfig) -> RewardSpec:
    if config.on_failure in ("default", "none"):
        refuse_old_trl(name)
    return RewardSpec(made, name, config.columns, config.on_failure)


def _labels(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """Return a name for each function: TRL's, with a number appended if another function has the same."""
    labels: list[str] = []
    for name in map(_name, functions):
        label, number = name, 1
        while label in labels:
            number += 1
            label = f"{name}_{number}"
        labels.append(label)
    return labels


def _name(function: Any) -> str:
    """Return the name that TRL's ``get_callable_name`` finds."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _logging_as(label: str, function: Any, every: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a function. If its label is not its name, metrics that it logs under its name are logged under the label.

    TRL keeps as many values of a column as there are completions. If two functions logged the same column, it would mix their values.
    """
    name = _name(function)
    if label == name:
        return every

    def under(log: Callable[[str, Any], object]) -> Callable[[str, Any], object]:
        return lambda key, value: log(label + key.removeprefix(name) if key.startswith(name) else key, value)

    return {**every, **{handle: under(every[handle]) for handle in ("log_metric", "log_extra") if every.get(handle) is not None}}


async def _called(function: Callable[..., Any], every: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return await function(**every)
    return await asyncio.to_thread(function, **every)


def _check(label: str, column: Sequence[Any], expected: int, given: Mapping[str, Any]) -> None:
    if len(column) != expected:
        raise ValueError(f"the reward function {label!r} gave {len(column)} rewards for {expected} completions")
    if (log_metric := given.get("log_metric")) is not None:
        # All ranks must log this, even without a value: TRL before 1.14 gathers by name and waits forever for a rank that skips one.
        log_metric(f"rewards/{label}/mean", mean([float(value) for value in column if not _missing(value)]))


def _sum(row: Sequence[float | None], shares: Sequence[float]) -> float | None:
    if any(map(_missing, row)):
        return None
    return sum(float(value) * share for value, share in zip(row, shares, strict=True) if value is not None)


def _missing(value: float | None) -> bool:
    """Whether a reward is missing: None, or NaN, which is what TRL converts None to."""
    return value is None or math.isnan(value)
