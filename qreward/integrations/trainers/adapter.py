"""The base of the trainers' adapters: what becomes of a row of the trainer's data, and of a reward that is missing. Knows no trainer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers.rewarder import Rewarder, Scored, reward_of, rewarder
from qreward.integrations.trainers.settings import DefaultColumns, Failure, RewardConfig, Source, item_of, prompt_fields


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is particular to one trainer, as data.

    Attributes:
        trainer: name of the trainer; ``qreward.<trainer>`` is its logger.
        deadline: default number of seconds for one reward, below the trainer's own limit.
        columns: item field -> default columns.
        missing: what ``on_failure: default`` means.
        why_not_none: why ``on_failure: none`` is impossible, and what to use instead; ``""`` if it is possible.
    """

    trainer: str
    deadline: float
    columns: DefaultColumns
    missing: Failure
    why_not_none: str = ""

    def checked(self, config: RewardConfig) -> RewardConfig:
        """Return the settings. Raises ``ConfigError`` if this trainer does not support them."""
        if self.why_not_none and config.on_failure == "none":
            raise ConfigError(f"{config.place}: on_failure: none is not possible with {self.trainer}, {self.why_not_none}")
        return config

    def rewarder(self, source: Source = None) -> Rewarder:
        """Return the rewarder of this process for these settings. Raises ``ConfigError``."""
        made = rewarder(source, deadline=self.deadline)
        self.checked(made.config)
        return made

    def item(self, row: Mapping[str, Any], config: RewardConfig) -> dict[str, Any]:
        """Return the arguments of ``Rewarder.score`` for a row. Raises ``ConfigError`` if a column does not exist."""
        return item_of(row, config.columns, self.columns, prompt_fields(config))

    async def score(self, made: Rewarder, rows: Iterable[Mapping[str, Any]]) -> list[Scored]:
        """Score all rows concurrently. The results are in the order of the rows."""
        return await made.score_many([self.item(row, made.config) for row in rows])

    def reward(self, scored: Scored, config: RewardConfig, effect: str = "") -> float | None:
        """Return the reward, or what replaces a missing one, which is logged with its ``effect``. Raises the error of scoring."""
        if not scored.ok:
            log = logging.getLogger(f"qreward.{self.trainer}")
            log.warning("no reward: %s (on_failure: %s)%s", scored.reason, config.on_failure, effect)
        return reward_of(scored, config.on_failure, self.missing)
