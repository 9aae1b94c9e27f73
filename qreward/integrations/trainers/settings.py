"""The settings of a trainer's adapter: client, scorer, deadline and failure value, read from a file, a mapping or the environment.

This module also checks settings before any request. It knows no trainer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator, model_validator

from qreward.errors import ConfigError
from qreward.judge.config import JudgeConfig
from qreward.judge.prompts import Template
from qreward.judge.verdict_parser import NAMED
from qreward.scheduler.routing import matches
from qreward.settings.base import Policy, Seconds, shown
from qreward.settings.client import ClientConfig, load_config
from qreward.settings.files import SettingsLocation, read_settings
from qreward.settings.policies import Level, Priority
from qreward.spelling import did_you_mean

VARIABLE = "QREWARD_REWARD"
"""Environment variable that names the file with the settings of an adapter."""

Failure = float | Literal["default", "raise", "none"]
"""A number must be finite. Booleans are rejected: YAML reads a bare ``no`` as false, which would count as 0.0."""

RESERVED = frozenset({"timeout", "priority", "tenant"})
"""Parameters of ``Scorer.score`` that no column may fill."""


class RewardConfig(Policy):
    """How a trainer's adapter gets its rewards.

    Args:
        client: the client's settings, or the path of a file with them. None takes those that ``QRewardClient.from_env`` finds.
        judge: settings of an LLM judge; see :class:`~qreward.judge.config.JudgeConfig`.
        reward_model: name of a reward model. Exactly one of ``judge`` and ``reward_model`` is required.
        deadline: seconds for one reward, including queueing, retries and hedges. None takes the default of the adapter, which is below the
            trainer's own limit.
        on_failure: what replaces a missing reward: ``raise``, ``none`` (if the trainer supports missing rewards), a number, or
            ``default``, the choice of the adapter.
        columns: field of the item (``prompt``, ``response``, ``reference``, or any field that the judge's prompt names) -> name of the
            trainer's column that holds it.
        priority: priority of all requests, 0 (most urgent) to 9.

    Raises:
        ConfigError: a setting is unknown or wrong.

    Example:
        >>> RewardConfig(reward_model="rm-7b", on_failure="none").deadline is None
        True
    """

    client: ClientConfig | None = None
    judge: JudgeConfig | None = None
    reward_model: Annotated[str, Field(min_length=1)] | None = None
    deadline: Seconds | None = None
    on_failure: Failure = "default"
    columns: dict[str, str] = Field(default_factory=dict)
    priority: Level = Priority.NORMAL
    _place: str = PrivateAttr("configuration")

    @property
    def place(self) -> str:
        """Where these settings were read, for error messages: a file's name if they came from a file."""
        return self._place

    def at(self, place: str) -> RewardConfig:
        """Return a copy whose ``place`` is another one."""
        other = self.model_copy()
        BaseModel.__setattr__(other, "_place", place)  # settings are frozen, but the place is not a setting
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RewardConfig) and dict(self) == dict(other)  # the place does not count

    __hash__ = None  # type: ignore[assignment]  # mappings are not hashable

    @field_validator("on_failure", mode="wrap")
    @classmethod
    def _a_finite_number(cls, value: object, read: Callable[[object], Failure]) -> Failure:
        try:
            found = read(value)
        except ValidationError:
            found = nan
        if isinstance(value, bool) or (isinstance(found, float) and not isfinite(found)):
            raise ValueError(f"must be a finite number, or 'default', 'raise' or 'none', not {shown(value)}")
        return found

    @field_validator("columns")
    @classmethod
    def _fill_fields(cls, value: dict[str, str]) -> dict[str, str]:
        if reserved := sorted(RESERVED & value.keys()):
            raise ValueError(
                f"cannot fill {reserved[0]!r}, which is not a field of an item; remove it (set deadline and priority beside columns)"
            )
        return value

    @field_validator("client", mode="before")
    @classmethod
    def _from_a_file(cls, value: object) -> object:
        if isinstance(value, Mapping):  # validated here, so that an error shows the full path of the setting
            return read_settings(value, empty="it must hold at least 'endpoints'")[0]
        return load_config(value) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _one_scorer(self) -> RewardConfig:
        if (self.judge is None) == (self.reward_model is None):
            raise ValueError("set exactly one of judge (a mapping of settings) and reward_model (a model's name)")
        return self


Source = str | Path | Mapping[str, Any] | RewardConfig | None
"""A file, a mapping with the same content, settings, or None for the file that ``QREWARD_REWARD`` names."""


def load_reward_config(source: Source = None, *, place: str | None = None) -> RewardConfig:
    """Load the settings of an adapter.

    Args:
        source: a YAML, JSON or TOML file, or a mapping with the same content. None takes the file that ``QREWARD_REWARD`` names.
        place: name of the source in error messages; the file's name by default.

    Raises:
        ConfigError: there are no settings, they cannot be read, or a setting is wrong. The message names the file and the setting.
    """
    if isinstance(source, RewardConfig):
        return source
    given = source if source is not None else os.environ.get(VARIABLE)
    if not given:
        raise ConfigError(f"no reward settings; pass a file or a mapping, or set the environment variable {VARIABLE} to a file")
    content, read_at = read_settings(given, empty="it must hold at least judge or reward_model")
    called = SettingsLocation(place) if place else read_at
    try:
        return RewardConfig(**content).at(str(called))
    except ConfigError as error:
        raise called.named(error) from None


ITEM = frozenset({"prompt", "response", "reference"})
"""Fields that every item has."""


def prompt_fields(config: RewardConfig) -> frozenset[str]:
    """Return the fields that the judge's templates name.

    Without a prompt of the user's own, and for a reward model, the three fields that every item has are included.
    """
    judge = config.judge
    if judge is None:
        return ITEM
    return _names(judge.prompt or "", judge.system or "") | (ITEM if judge.prompt is None else frozenset())


@lru_cache(maxsize=64)
def _names(prompt: str, system: str) -> frozenset[str]:
    return (Template(prompt, "prompt").names | Template(system, "system").names) - {"answer_form"}  # filled by the judge


_JUDGES_OWN = frozenset(JudgeConfig.model_fields) | {"client", "owns_client", "score"}
"""Arguments of a judge, which a parameter of its requests must not have as its name."""


@contextmanager
def name_source_in_errors(config: RewardConfig) -> Iterator[None]:
    """Add to a ``ConfigError`` raised inside where the settings were read and which of them is wrong."""
    try:
        yield
    except ConfigError as error:
        scorer = "judge" if config.judge is not None else "reward_model"
        text = str(error)
        setting = "" if text.startswith(("columns", f"{scorer}:", f"{scorer}.")) else f"{scorer}: "
        raise ConfigError(f"{config.place}: {setting}{text}") from None


def check(config: RewardConfig, routes: Iterable[str]) -> None:
    """Check what can be known before the first reward. ``routes`` are the patterns of the models that the client serves.

    Raises:
        ConfigError: a verdict, parameter or column has an unknown name, or no route serves a model, so that every reward would fail.
    """
    if config.judge is not None:
        _check_judge(config.judge)
    known = ITEM | (prompt_fields(config) if config.judge is not None else frozenset())
    for field in config.columns.keys() - known:
        raise ConfigError(f"columns: unknown field {field!r}; {did_you_mean(field, sorted(known), otherwise='the fields are')}")
    setting, models = ("judge.model", config.judge.model) if config.judge is not None else ("reward_model", (config.reward_model or "",))
    patterns = list(routes)
    for model in models:
        if not any(matches(pattern, model) for pattern in patterns):
            # lower cutoff: a pattern is shorter than the names it matches
            hint = did_you_mean(model, patterns, cutoff=0.4, otherwise="the routes are")
            raise ConfigError(f"{setting}: no endpoint of the client serves the model {model!r}; {hint}")


def _check_judge(judge: JudgeConfig) -> None:
    if ":" not in judge.verdict and judge.verdict not in NAMED:
        hint = did_you_mean(judge.verdict, NAMED)
        raise ConfigError(f"judge.verdict: unknown verdict {judge.verdict!r}; {hint} A verdict of your own is written module:Class")
    if reserved := sorted(_JUDGES_OWN & judge.params.keys()):
        raise ConfigError(
            f"judge.params: {reserved[0]!r} is not a parameter of a request; if it is a setting of the judge, write it beside params"
        )
