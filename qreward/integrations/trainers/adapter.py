"""The base of the trainers' adapters. It turns rows of data into items to score, and replaces missing rewards.

This module depends on no trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers.rewarder import Rewarder, Scored, reward_of, rewarder
from qreward.integrations.trainers.settings import RESERVED, Failure, RewardConfig, Source, prompt_fields
from qreward.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class Adapter:
    """Describes how one trainer differs from other trainers.

    Attributes:
        trainer: name of the trainer. The logger of the adapter is ``qreward.<trainer>``.
        deadline: default number of seconds for one reward. The number is below the trainer's own limit.
        columns: field of an item -> default columns. If the settings name no column for a field, the first default column that is present
            fills the field.
        missing: meaning of ``on_failure: default``.
        none_unsupported: the reason why ``on_failure: none`` is not possible, and what to use instead; ``""`` if ``none`` is
            possible.
    """

    trainer: str
    deadline: float
    columns: Mapping[str, tuple[str, ...]]
    missing: Failure
    none_unsupported: str = ""

    def checked(self, config: RewardConfig) -> RewardConfig:
        """Return the settings unchanged. Raises ``ConfigError`` if this trainer does not support them."""
        if self.none_unsupported and config.on_failure == "none":
            raise ConfigError(f"{config.place}: on_failure: none is not possible with {self.trainer}, {self.none_unsupported}")
        return config

    def rewarder(self, source: Source = None) -> Rewarder:
        """Return the rewarder of this process for these settings. Raises ``ConfigError`` if the settings are missing or wrong."""
        made = rewarder(source, deadline=self.deadline)
        self.checked(made.config)
        return made

    def item(self, row: Mapping[str, Any], config: RewardConfig) -> dict[str, Any]:
        """Return the arguments of ``Rewarder.score`` for a row, which is a mapping column -> value.

        The column of a field is the column that the settings name. Without such a setting, it is the first default column that is present.
        Without a default column, it is the column with the name of the field. In the settings, ``a.b`` means entry ``b`` of the mapping in
        column ``a``.

        Raises:
            ConfigError: a configured column does not exist, or no column holds the prompt. The message lists the existing columns.

        Example:
            >>> adapter = Adapter("mine", 60.0, {"response": ("text",)}, missing="raise")
            >>> adapter.item({"question": "2 + 2?", "text": "4"}, RewardConfig(reward_model="rm", columns={"prompt": "question"}))
            {'prompt': '2 + 2?', 'response': '4'}
        """
        named = prompt_fields(config)
        item = {field: _column(row, column, field) for field, column in config.columns.items()}
        for field, candidates in self.columns.items():
            column = next((name for name in candidates if row.get(name) is not None), None)
            if column is not None:
                item.setdefault(field, row[column])
        item |= {field: row[field] for field in named - item.keys() - RESERVED if field in row}
        if "prompt" not in item:
            if "prompt" in named:
                raise ConfigError(
                    f"the data has no column with the prompt; name it in columns, such as {{prompt: question}}. {_existing(row)}"
                )
            item["prompt"] = ""
        return item

    def fields(self, row: Mapping[str, Any], config: RewardConfig) -> set[str]:
        """Return the fields of an item that have a column in the row, whether or not the column's value is None."""
        named = {field for field in prompt_fields(config) if field in row}
        return named | {field for field, columns in self.columns.items() if any(name in row for name in columns)} | set(config.columns)

    async def score(self, made: Rewarder, rows: Iterable[Mapping[str, Any]]) -> list[Scored]:
        """Score all rows concurrently. The results are in the order of the rows."""
        return await made.score_many([self.item(row, made.config) for row in rows])

    def reward(self, scored: Scored, config: RewardConfig, effect: str = "") -> float | None:
        """Return the reward. A missing reward is logged, and replaced or raised as the settings say.

        ``effect`` is a text about the effect of a missing reward, which is added to the log message.
        """
        if not scored.ok:
            log = logging.getLogger(f"qreward.{self.trainer}")
            log.warning("no reward: %s (on_failure: %s)%s", scored.reason, config.on_failure, effect)
        return reward_of(scored, config.on_failure, self.missing)


def _column(row: Mapping[str, Any], path: str, field: str) -> Any:
    value: Any = row
    for name in (path,) if path in row else path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            hint = did_you_mean(path, sorted(row), otherwise="there are")
            raise ConfigError(f"columns: {field} is mapped to {path!r}, which the data does not have; {hint}")
        value = value[name]
    return value


def _existing(row: Mapping[str, Any]) -> str:
    return f"There are {', '.join(map(repr, sorted(row)))}."
