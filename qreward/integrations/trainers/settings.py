"""The settings of a trainer's adapter: client, scorer, deadline and failure value, read from a file, a mapping or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator, model_validator

from qreward.errors import ConfigError, did_you_mean
from qreward.integrations.trainers.verdicts import VerdictsConfig
from qreward.judge.cascade import CascadeConfig
from qreward.judge.config import JudgeConfig
from qreward.judge.prompts import Template
from qreward.scheduler.routing import matches
from qreward.settings.base import Accepting, Policy, Seconds, default, shown
from qreward.settings.client import ClientConfig, load_config
from qreward.settings.files import SettingsLocation, read_settings
from qreward.settings.policies import Level, Priority

VARIABLE = "QREWARD_REWARD"
"""Environment variable that names the file with the settings of an adapter."""

SCORERS = ("judge", "reward_model", "cascade")
"""The settings that name the scorer. Exactly one of them must be set."""

Failure = float | Literal["default", "raise", "none"]
"""Type of ``on_failure``. A number must be finite. Booleans are rejected, because YAML reads a bare ``no`` as false, which would be 0.0."""

RESERVED = frozenset({"timeout", "priority", "tenant"})
"""Parameters of ``Scorer.score`` that no column may fill."""


class RewardConfig(Policy):
    """Settings of a trainer's adapter.

    Args:
        client: the client's settings, or the path of a file with them. None takes the settings that ``QRewardClient.from_env`` finds.
        judge: settings of an LLM judge; see :class:`~qreward.judge.config.JudgeConfig`. Exactly one of ``judge``, ``reward_model`` and
            ``cascade`` is required.
        reward_model: name of a reward model.
        cascade: settings of several scorers that are tried in order; see :class:`~qreward.judge.cascade.CascadeConfig`.
        deadline: seconds for one reward, including queueing, retries and hedges. None takes the default of the adapter.
        on_failure: what replaces a missing reward: a number, ``none``, ``raise``, or ``default``, the choice of the adapter.
        columns: field of the item -> name of the trainer's column that holds the field.
        priority: priority of all requests, 0 (most urgent) to 9.
        rank: numbers of a :class:`~qreward.judge.ranking.Ranking` of the responses to one prompt, which are then the rewards.
        verdicts: the path of a file to which each judgement is appended as a JSON line, or a mapping with ``path`` and ``contents``.

    Raises:
        ConfigError: a setting is unknown or wrong.

    Example:
        >>> RewardConfig(reward_model="rm-7b", on_failure="none").deadline is None
        True
    """

    client: ClientConfig | None = None
    judge: JudgeConfig | None = None
    reward_model: Annotated[str, Field(min_length=1)] | None = None
    cascade: CascadeConfig | None = None
    deadline: Seconds | None = None
    on_failure: Failure = "default"
    columns: dict[str, str] = Field(default_factory=dict)
    priority: Level = default(Priority.NORMAL)
    rank: Literal["scores", "advantages"] | None = None
    verdicts: Accepting[VerdictsConfig | None, VerdictsConfig | Mapping[str, Any] | str | Path | None] = default(None)
    _place: str = PrivateAttr("configuration")
    _client_file: str | Path | None = PrivateAttr(None)

    @property
    def client_file(self) -> str | Path | None:
        """The file that these settings name as their ``client``."""
        return self._client_file

    @property
    def place(self) -> str:
        """The source of these settings, such as the name of a file. Error messages name this source."""
        return self._place

    def at(self, place: str) -> RewardConfig:
        """Return a copy with this ``place``."""
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

    @field_validator("client", "verdicts", mode="before")
    @classmethod
    def _named_by_a_path(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str | Path):
            return value
        return load_config(value) if info.field_name == "client" else {"path": str(value)}

    @model_validator(mode="wrap")
    @classmethod
    def _one_scorer(cls, value: Any, read: Callable[[Any], RewardConfig]) -> RewardConfig:
        client, made = value.get("client") if isinstance(value, Mapping) else None, read(value)
        if isinstance(client, str | Path):
            BaseModel.__setattr__(made, "_client_file", client)
        if [made.judge, made.reward_model, made.cascade].count(None) != len(SCORERS) - 1:
            raise ValueError(
                "set exactly one of judge (a mapping of settings), reward_model (a model's name) and cascade (several of these)"
            )
        return made

    @property
    def scorer(self) -> JudgeConfig | CascadeConfig | str:
        """The value of the setting that names the scorer: ``judge``, ``reward_model`` or ``cascade``, whichever is set."""
        return next(each for each in (self.judge, self.cascade, self.reward_model) if each is not None)

    @property
    def stages(self) -> dict[str, JudgeConfig | str]:
        """Name of a setting, such as ``judge`` or ``cascade.stages.0`` -> the judge or the reward model that it configures."""
        if self.cascade is None:
            return {"judge": self.judge} if self.judge is not None else {"reward_model": self.reward_model or ""}
        given = self.cascade.stages
        return {f"cascade.stages.{key}": stage for key, stage in (given.items() if isinstance(given, dict) else enumerate(given))}

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all models that may score."""
        return tuple(name for stage in self.stages.values() for name in ((stage,) if isinstance(stage, str) else stage.model))


Source = str | Path | Mapping[str, Any] | RewardConfig | None
"""A file, a mapping with the content of a file, validated settings, or None for the file that ``QREWARD_REWARD`` names."""


def load_reward_config(source: Source = None, *, over: Mapping[str, Any] | None = None, place: str | None = None) -> RewardConfig:
    """Load and return the settings of an adapter.

    ``source`` is a YAML, JSON or TOML file, or a mapping with its content. None takes the file that ``QREWARD_REWARD`` names. The settings
    in ``over`` replace those of the source; mappings are merged.
    Messages name the file, or ``place``. Raises ``ConfigError`` if there are no settings, or a setting is wrong.
    """
    if isinstance(source, RewardConfig):
        if not over:
            return source
        content, location = {**dict(source), "client": source.client_file or source.client}, SettingsLocation(source.place)
    else:
        given = source if source is not None else os.environ.get(VARIABLE)
        if not given:
            raise ConfigError(f"no reward settings; pass a file or a mapping, or set the environment variable {VARIABLE} to a file")
        content, location = read_reward_settings(given)
    if over:
        content = merged(content, read_reward_settings(over)[0])
    if place or over:  # a line of the file would not be that of the fault
        location = SettingsLocation(place or str(location))
    return location.validated(RewardConfig, content).at(str(location))


_LEAST = f"it must contain at least {', '.join(SCORERS[:-1])} or {SCORERS[-1]}"


def read_reward_settings(source: str | Path | Mapping[str, Any], *, empty: str = _LEAST) -> tuple[dict[str, Any], SettingsLocation]:
    """Read settings without validating them, and return their content and their location. Raises ``ConfigError`` if that fails.

    Paths in a settings file are relative to the folder of the file. ``empty`` is the end of the message for an empty file.
    """
    content, place = read_settings(source, empty=empty)
    if isinstance(source, Mapping):
        return content, place
    cascade = content.get("cascade")
    stages = cascade.get("stages") if isinstance(cascade, Mapping) else None
    judges = stages.values() if isinstance(stages, Mapping) else stages if isinstance(stages, list) else ()
    paths = [(content, "client"), (content, "verdicts"), (content.get("verdicts"), "path")]
    paths += [(judge, name) for judge in (content.get("judge"), *judges) for name in ("calibration", "rubric")]
    folder = Path(source).expanduser().parent
    for settings, name in paths:
        if isinstance(settings, dict) and isinstance(path := settings.get(name), str) and path.strip():
            settings[name] = str(folder / Path(path).expanduser())
    return content, place


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; ``above`` takes precedence."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        found[key] = merged(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return found


ITEM = frozenset({"prompt", "response", "reference"})
"""Fields that every item has."""


def fields_of(config: RewardConfig) -> tuple[frozenset[str], frozenset[str]]:
    """Return the fields that each item must have, and all fields that the scorers use.

    The former are those that the judges' own templates name, and those of rubrics without a default. A reward model, and a judge whose
    settings have no ``prompt``, use the three fields that every item has.
    """
    judges = [stage for stage in config.stages.values() if isinstance(stage, JudgeConfig)]
    needed = frozenset(judge.rubric_column for judge in judges if judge.rubric_column and judge.rubric is None)
    needed = needed.union(*(_names(judge.prompt or "", judge.system or "") for judge in judges))
    has_own = len(judges) == len(config.stages) and all(judge.prompt is not None for judge in judges)
    return needed, needed.union((judge.rubric_column for judge in judges if judge.rubric_column), () if has_own else ITEM)


@lru_cache(maxsize=64)
def _names(prompt: str, system: str) -> frozenset[str]:
    return (Template(prompt, "prompt").names | Template(system, "system").names) - {"answer_form"}  # filled by the judge


@contextmanager
def name_source_in_errors(config: RewardConfig) -> Iterator[None]:
    """Add the source of the settings and the name of the wrong setting to a ``ConfigError`` that is raised inside the context."""
    try:
        yield
    except ConfigError as error:
        scorer = next(name for name in SCORERS if getattr(config, name) is not None)
        text = str(error)
        setting = "" if text.startswith(("columns", f"{scorer}:", f"{scorer}.")) else f"{scorer}: "
        raise ConfigError(f"{config.place}: {setting}{text}") from None


def check(config: RewardConfig, routes: Iterable[str]) -> None:
    """Check settings before the first reward. ``routes`` are the patterns of the models that the client serves.

    Raises ``ConfigError`` for models that no endpoint serves, and for columns of fields that do not exist.
    """
    known, patterns = ITEM | fields_of(config)[1], list(routes)
    for setting, stage in config.stages.items():
        models, where = ((stage,), setting) if isinstance(stage, str) else (stage.model, f"{setting}.model")
        for model in models:
            if not any(matches(pattern, model) for pattern in patterns):
                hint = did_you_mean(model, patterns, cutoff=0.4, otherwise="the routes are")  # patterns are shorter than names
                raise ConfigError(f"{where}: no endpoint of the client serves the model {model!r}; {hint}")
    for field in config.columns.keys() - known:
        raise ConfigError(f"columns: unknown field {field!r}; {did_you_mean(field, sorted(known), otherwise='the fields are')}")
