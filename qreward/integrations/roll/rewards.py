"""Scores the rows of a batch: rewards, metrics, and the handling of missing rewards. Knows no tensors and no Ray."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qreward.errors import ConfigError, QRewardError
from qreward.integrations.trainers import DefaultColumns, RewardConfig, Rewarder, Scored, item_of, prompt_fields

DEADLINE = 300.0
"""Default number of seconds for one reward; ROLL has no limit of its own."""
PROMPTS, RESPONSES = "prompts", "responses"
"""Columns of the decoded texts, with the names that ROLL gives their tokens."""
DEFAULT_COLUMNS: DefaultColumns = {"prompt": ("messages", PROMPTS), "response": (RESPONSES,), "reference": ("ground_truth",)}
LARGEST = 65504.0
"""Largest finite number in float16, in which ROLL stores rewards (IEEE 754 binary16)."""
MOST_DROPPED = 100
"""Number of prompts or groups dropped in a row that ends the run, because it is no longer chance that judging fails."""


class RewardUnavailable(QRewardError):
    """A reward is missing, and the settings name no number for it. It ends ROLL's run unless ``SkippingRolloutLoop`` is used."""


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """The rewards and metrics of a batch.

    Attributes:
        scores: one reward for each row, in order; finite, and within the range of float16.
        metrics: name -> one number for each row.
    """

    scores: list[float]
    metrics: dict[str, list[float]]


def failure_of(config: RewardConfig) -> float | None:
    """Return the number that replaces a missing reward, or None if an error is raised instead, which is the default.

    Raises:
        ConfigError: ``on_failure`` is ``none``, which ROLL does not support, or a number beyond float16.
    """
    if config.on_failure == "none":
        raise ConfigError(
            "on_failure: none is not possible with ROLL, where each row must have a number; use raise (the default) with "
            "user_defined_rollout_loop_cls: qreward.integrations.roll.SkippingRolloutLoop to drop the prompt, or set a number"
        )
    return None if isinstance(config.on_failure, str) else _fitting(config.on_failure)


def rows_of(columns: Mapping[str, Sequence[Any]], prompts: Sequence[str], responses: Sequence[str]) -> list[dict[str, Any]]:
    """Return one mapping for each row: the columns of the data, and the decoded ``prompts`` and ``responses``."""
    texts: dict[str, Sequence[Any]] = {PROMPTS: prompts, RESPONSES: responses}
    whole = {name: values for name, values in columns.items() if len(values) == len(responses)} | texts
    rows = [dict(zip(whole, values, strict=True)) for values in zip(*whole.values(), strict=True)]
    return [row | ({"messages": _messages(row["messages"])} if "messages" in row else {}) for row in rows]


def _messages(value: Any) -> Any:
    """Return a conversation as a list. ROLL's data sets hold it as a list or as JSON."""
    with suppress(ValueError):
        return json.loads(value) if isinstance(value, str) else value
    return value


async def judge_rows(rewarder: Rewarder, config: RewardConfig, rows: Iterable[Mapping[str, Any]]) -> JudgedRow:
    """Score all rows concurrently.

    Raises:
        RewardUnavailable: a reward is missing, and ``on_failure`` names no number.
        ConfigError: a column that the settings name does not exist, or a reward does not fit into float16.
    """
    named = prompt_fields(config)
    scored = await rewarder.score_many([item_of(row, config.columns, DEFAULT_COLUMNS, named) for row in rows])
    failure = failure_of(config)
    lost = [each for each in scored if not each.ok]
    if lost and failure is None:
        raise RewardUnavailable(
            f"{len(lost)} of {len(scored)} rewards could not be had; the first: {lost[0].reason}. To go on without them, set "
            "user_defined_rollout_loop_cls: qreward.integrations.roll.SkippingRolloutLoop, or choose a number in on_failure"
        )
    return JudgedRow([_fitting(_number(each, failure)) for each in scored], metrics_of(scored))


def metrics_of(scored: Iterable[Scored]) -> dict[str, list[float]]:
    """Return the metrics of a batch, always with the same names. ROLL computes their mean, maximum and minimum for each domain."""
    rows = list(scored)
    return {
        "judge/ok": [float(each.ok) for each in rows],
        "judge/errors": [float(not each.ok) for each in rows],
        "judge/seconds": [each.seconds for each in rows],
        "judge/tokens": [float(each.tokens) for each in rows],
    }


def _number(scored: Scored, failure: float | None) -> float:
    score = scored.score(failure)
    assert score is not None
    return float(score)


def _fitting(score: float) -> float:
    if not math.isfinite(score) or abs(score) > LARGEST:
        raise ConfigError(f"a reward of {score:g} does not fit into ROLL's float16; scale the scores, such as by judge.range")
    return score


class Drops:
    """Counts consecutive drops, so that a fleet that is down ends the run instead of having it generate forever.

    Args:
        what: name of the dropped things, for the error message.
        most: number of consecutive drops that ends the run.
    """

    def __init__(self, what: str, most: int = MOST_DROPPED) -> None:
        self._what = what
        self._most = most
        self._row = 0

    def kept(self) -> None:
        """Record one that was judged."""
        self._row = 0

    def dropped(self) -> None:
        """Record one that was dropped."""
        self._row += 1

    def check(self, reason: str) -> None:
        """Raise :class:`RewardUnavailable` if ``most`` or more were dropped in a row."""
        if self._row >= self._most:
            raise RewardUnavailable(f"{self._row} {self._what} in a row were dropped, as no rewards could be had. The last: {reason}")
