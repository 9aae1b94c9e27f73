"""The base of the trainers' adapters: it turns rows of data into items to score, and replaces missing rewards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qreward.engine.portal import portal
from qreward.errors import ConfigError
from qreward.integrations.trainers.rewarder import Rewarder, Scored, reward_of, rewarder
from qreward.integrations.trainers.settings import RESERVED, Failure, RewardConfig, Source, prompt_fields
from qreward.judge.prompts import check_columns, column_value, is_absent
from qreward.spelling import TYPO, closest


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
        no_groups: why the responses to one prompt cannot be ranked, and what to use instead; ``""`` if each call of :meth:`score` has all
            responses to its prompts.
    """

    trainer: str
    deadline: float
    columns: Mapping[str, tuple[str, ...]]
    missing: Failure
    none_unsupported: str = ""
    no_groups: str = "which does not pass the responses to one prompt together; leave it out"

    def checked(self, config: RewardConfig) -> RewardConfig:
        """Return the settings unchanged. Raises ``ConfigError`` if this trainer does not support them."""
        if self.none_unsupported and config.on_failure == "none":
            raise ConfigError(f"{config.place}: on_failure: none is not possible with {self.trainer}, {self.none_unsupported}")
        if self.no_groups and config.rank is not None:
            raise ConfigError(f"{config.place}: rank: {config.rank} is not possible with {self.trainer}, {self.no_groups}")
        try:
            check_columns(config.columns, self.columns["response"], self.columns.get("reference", ()))
        except ConfigError as error:
            raise ConfigError(f"{config.place}: {error}") from None
        return config

    def rewarder(self, source: Source = None) -> Rewarder:
        """Return the rewarder of this process for these settings. Raises ``ConfigError`` if the settings are missing or wrong."""
        made = rewarder(source, deadline=self.deadline)
        self.checked(made.config)
        return made

    def item(self, row: Mapping[str, Any], config: RewardConfig) -> dict[str, Any]:
        """Return the arguments of ``Rewarder.score`` for a row, which is a mapping column -> value.

        The column of a field is the column that the settings name. Without such a setting, it is the first default column with a value.
        Without a default column, it is the column with the name of the field. In the settings, ``a.b`` means entry ``b`` of the mapping in
        column ``a``. A field whose column or entry has no value in this row is in the item as None, so that its value is known to be
        missing.

        Raises:
            ConfigError: a configured column does not exist, or no column holds the prompt. The message lists the existing columns.

        Example:
            >>> adapter = Adapter("mine", 60.0, {"response": ("text",)}, missing="raise")
            >>> adapter.item({"question": "2 + 2?", "text": "4"}, RewardConfig(reward_model="rm", columns={"prompt": "question"}))
            {'prompt': '2 + 2?', 'response': '4'}
        """
        named = prompt_fields(config)
        item: dict[str, Any] = {}
        for field, column in config.columns.items():
            try:
                item[field] = column_value(row, column)
            except KeyError:
                if isinstance(row.get(column.split(".", maxsplit=1)[0]), Mapping):
                    item[field] = None  # this row does not have the entry
                    continue
                others = row.keys() - ({*self.columns["response"]} if field == "reference" else set())
                usual = [name for name in self.columns.get(field, ()) if name in others]
                near = closest(column, sorted(others), cutoff=TYPO) or usual or closest(column, sorted(others))
                hint = f"did you mean {near[0]!r}?" if near else f"there are {_listed(row)}"
                raise ConfigError(f"columns: {field} is mapped to {column!r}, which the data does not have; {hint}") from None
        for field, candidates in self.columns.items():
            values = [row[name] for name in candidates if name in row]
            if values and field not in item:
                item[field] = next((value for value in values if not is_absent(field, value)), None)
        item |= {field: row[field] for field in named - item.keys() - RESERVED if field in row}
        if "prompt" not in item:
            if "prompt" in named:
                raise ConfigError(
                    f"the data has no column with the prompt; name it in columns, such as {{prompt: question}}. There are {_listed(row)}."
                )
            item["prompt"] = ""
        return item

    async def score(
        self,
        made: Rewarder,
        rows: Iterable[Mapping[str, Any]],
        plain: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        *,
        step: int | None = None,
    ) -> list[Scored]:
        """Score all rows concurrently. The results are in the order of the rows. ``plain`` converts the values of each item. ``step`` is
        the trainer's step, if it is known.

        A row without a value that the settings need is a failure of this row. A column that does not exist is a wrong setting.

        Raises:
            ConfigError: the settings do not fit the data.
        """
        return await made.score_many([plain(self.item(row, made.config)) for row in rows], step=step)

    async def score_in_portal(self, made: Rewarder, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> list[Scored]:
        """Score rows in the event loop of the portal, for callers whose own loop ends soon. Connections are then kept for the next call."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.score(made, list(rows), step=step), portal().loop))

    def reward(self, scored: Scored, config: RewardConfig, effect: str = "") -> float | None:
        """Return the reward. A missing reward is logged, and replaced or raised as the settings say.

        ``effect`` is a text about the effect of a missing reward, which is added to the log message.
        """
        if not scored.ok:
            log = logging.getLogger(f"qreward.{self.trainer}")
            log.warning("no reward: %s (on_failure: %s)%s", scored.reason, config.on_failure, effect)
        return reward_of(scored, config.on_failure, self.missing)


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, sorted(row)))
