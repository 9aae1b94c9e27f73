"""From the rows of a batch to its rewards and metrics, and what becomes of rewards that could not be had. Knows no tensor and no Ray."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qreward.errors import ConfigError, QRewardError
from qreward.integrations.trainers import RewardConfig, Rewarder, Scored, Usual, item_of, named_in_prompts

DEADLINE = 300.0
"""Seconds for one reward where the settings say nothing; ROLL has no limit of its own."""
PROMPTS, RESPONSES = "prompts", "responses"
"""Columns of the decoded texts, named as ROLL names their tokens."""
USUAL: Usual = {"prompt": ("messages", PROMPTS), "response": (RESPONSES,), "reference": ("ground_truth",)}
LARGEST = 65504.0
"""Largest number of the float16 in which ROLL holds rewards (IEEE 754 binary16)."""
MOST_DROPPED = 100
"""Prompts or groups dropped one after the other at which it is no longer chance that judges fail, and the run ends."""


class RewardUnavailable(QRewardError):
    """A reward could not be had, and the settings name no number for it. Told to ROLL, it ends the run; see ``SkippingRolloutLoop``."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a batch is worth.

    Attributes:
        scores: one for each row, in order; finite, and within float16.
        metrics: name -> one number for each row.
    """

    scores: list[float]
    metrics: dict[str, list[float]]


def failure_of(config: RewardConfig) -> float | None:
    """The number of a reward that could not be had, or None if then an error is raised, which is the default.

    Raises:
        ConfigError: ``none``, which this trainer does not know.
    """
    if config.on_failure == "none":
        raise ConfigError(
            "on_failure: none is not possible with ROLL, where each row must have a number; use raise (the default) with "
            "user_defined_rollout_loop_cls: qreward.integrations.roll.SkippingRolloutLoop to drop the prompt, or set a number"
        )
    return None if isinstance(config.on_failure, str) else _fitting(config.on_failure)


def rows_of(columns: Mapping[str, Sequence[Any]], prompts: Sequence[str], responses: Sequence[str]) -> list[dict[str, Any]]:
    """One mapping for each row: the columns of the data, and the decoded ``prompts`` and ``responses``."""
    texts: dict[str, Sequence[Any]] = {PROMPTS: prompts, RESPONSES: responses}
    whole = {name: values for name, values in columns.items() if len(values) == len(responses)} | texts
    rows = [dict(zip(whole, values, strict=True)) for values in zip(*whole.values(), strict=True)]
    return [row | ({"messages": _messages(row["messages"])} if "messages" in row else {}) for row in rows]


def _messages(value: Any) -> Any:
    """ROLL's data sets hold a conversation as a list, or as its JSON."""
    with suppress(ValueError):
        return json.loads(value) if isinstance(value, str) else value
    return value


async def judge_rows(rewarder: Rewarder, config: RewardConfig, rows: Iterable[Mapping[str, Any]]) -> Judged:
    """Score rows all at once.

    Raises:
        RewardUnavailable: one could not be had, and ``on_failure`` names no number.
        ConfigError: a column that the settings name is not there.
    """
    named = named_in_prompts(config)
    scored = await rewarder.score_many([item_of(row, config.columns, USUAL, named) for row in rows])
    failure = failure_of(config)
    lost = [each for each in scored if not each.ok]
    if lost and failure is None:
        raise RewardUnavailable(
            f"{len(lost)} of {len(scored)} rewards could not be had; the first: {lost[0].reason}. To go on without them, set "
            "user_defined_rollout_loop_cls: qreward.integrations.roll.SkippingRolloutLoop, or choose a number in on_failure"
        )
    return Judged([_fitting(_number(each, failure)) for each in scored], metrics_of(scored))


def metrics_of(scored: Iterable[Scored]) -> dict[str, list[float]]:
    """The metrics of a batch, of which ROLL makes means, maxima and minima for each domain; the same names always."""
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
    """Counts what is dropped one after the other, so that a dead fleet ends a run instead of having it generate for ever.

    Args:
        what: that is dropped, for the message.
    """

    def __init__(self, what: str, most: int = MOST_DROPPED) -> None:
        self._what = what
        self._most = most
        self._row = 0

    def kept(self) -> None:
        """One was judged."""
        self._row = 0

    def dropped(self) -> None:
        """One was not."""
        self._row += 1

    def check(self, reason: str) -> None:
        """Raise :class:`RewardUnavailable` if there were too many, one after the other."""
        if self._row >= self._most:
            raise RewardUnavailable(f"{self._row} {self._what} in a row were dropped, as no rewards could be had. The last: {reason}")
