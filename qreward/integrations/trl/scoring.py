"""Scores the completions of a TRL batch: rewards, ``None`` for completions that could not be scored, and metrics. Does not import TRL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import nan
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers import DefaultColumns, Rewarder, Scored, item_of, prompt_fields
from qreward.integrations.trainers.rewarder import reward_of
from qreward.integrations.trainers.settings import Failure
from qreward.integrations.trl.rows import rows_of

DEADLINE = 300.0
"""Default number of seconds for one reward. TRL has no limit, but ranks that wait for a slow rank do: 1,800 seconds by default."""

OLDEST = (1, 6)
"""First version of TRL that leaves a completion without any reward out of its group."""

DEFAULT_COLUMNS: DefaultColumns = {
    "prompt": ("prompt",),
    "response": ("response",),
    "reference": ("reference", "solution", "answer", "ground_truth"),
}


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """How completions are scored: the rewarder, the columns, and what replaces a missing reward."""

    rewarder: Rewarder
    name: str
    columns: Mapping[str, str]
    on_failure: Failure

    async def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], given: Mapping[str, Any]) -> list[float | None]:
        """Return the rewards in the order of the completions."""
        refuse_silent_zeros(self.name, self.on_failure, given.get("log_metric"))
        config = self.rewarder.config
        named = prompt_fields(config) if config else frozenset({"prompt"})
        items = [item_of(row, self.columns, DEFAULT_COLUMNS, named) for row in rows_of(prompts, completions, given)]
        scored = await self.rewarder.score_many(items)
        _tell(self.name, scored, given)
        return [reward_of(each, self.on_failure, default="none") for each in scored]


def refuse_silent_zeros(name: str, on_failure: Failure, log_metric: Any) -> None:
    """Reject several reward functions without an explicit ``on_failure``.

    TRL sums the rewards that are not ``None``, so a judge's failure counts as 0.0 if another function returned a reward. The user must
    choose that.

    Raises:
        ConfigError: there are several reward functions, and ``on_failure`` was not chosen.
    """
    trainer = getattr(log_metric, "__self__", None)  # the only way to reach the trainer and its other reward functions
    functions = getattr(trainer, "reward_funcs", ())
    if on_failure == "default" and len(functions) > 1:
        raise ConfigError(
            f"{name} is one of {len(functions)} reward functions, and TRL counts a reward that one of them could not give as 0.0; "
            f"put them into one by qreward.integrations.trl.combined(...), or choose on_failure: none (it is 0.0), raise, or a number"
        )


def refuse_old_trl(name: str) -> None:
    """Reject TRL before 1.6, which counts a reward of None as 0.0 even if no function returned one, and trains on it.

    Raises:
        ConfigError: the installed TRL is older than 1.6. If TRL is not an installed package, its version is unknown and nothing is raised.
    """
    try:
        found = version("trl")
    except PackageNotFoundError:
        return
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST:
        raise ConfigError(
            f"{name}: a reward that could not be had is None, which TRL {found} counts as 0.0; "
            "install trl>=1.6, or choose on_failure: raise or a number"
        )


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN for no values, which TRL leaves out of its logs."""
    return sum(values) / len(values) if values else nan


def _tell(name: str, scored: Sequence[Scored], given: Mapping[str, Any]) -> None:
    log_metric: Callable[[str, float], object] | None = given.get("log_metric")
    log_extra: Callable[[str, list[Any]], object] | None = given.get("log_extra")
    if log_metric is not None:
        log_metric(f"{name}/ok", mean([each.ok for each in scored]))
        log_metric(f"{name}/seconds", mean([each.seconds for each in scored]))
        log_metric(f"{name}/tokens", float(sum(each.tokens for each in scored)))
    if log_extra is not None:
        log_extra(f"{name}_error", [each.reason for each in scored])
