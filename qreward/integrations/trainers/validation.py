"""Checks an adapter's settings against each other and the client before any request. Errors name where the settings were read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qreward.client import QRewardClient
from qreward.errors import ConfigError
from qreward.integrations.trainers.settings import ITEM, RewardConfig, prompt_fields
from qreward.judge.config import JudgeConfig
from qreward.judge.verdict_parser import NAMED
from qreward.scheduler.routing import matches
from qreward.spelling import did_you_mean

_JUDGES_OWN = frozenset(JudgeConfig.model_fields) | {"client", "owns_client", "score"}
"""Arguments of a judge, which a parameter of its requests must not have as its name."""


@contextmanager
def name_source_in_errors(config: RewardConfig) -> Iterator[None]:
    """Add to a ``ConfigError`` raised inside where the settings were read and which of them is wrong."""
    try:
        yield
    except ConfigError as error:
        who = "judge" if config.judge is not None else "reward_model"
        said = str(error)
        setting = "" if said.startswith(("columns", f"{who}:", f"{who}.")) else f"{who}: "
        raise ConfigError(f"{config.place}: {setting}{said}") from None


def check(config: RewardConfig, client: QRewardClient) -> None:
    """Check what can be known before the first reward.

    Raises:
        ConfigError: a verdict, parameter or column has an unknown name, or no route of the client serves a model, so that every reward
            would fail.
    """
    if config.judge is not None:
        _check_judge(config.judge)
    _check_columns(config)
    for model in config.judge.model if config.judge is not None else (config.reward_model or "",):
        _check_model(model, client, "judge.model" if config.judge is not None else "reward_model")


def _check_judge(judge: JudgeConfig) -> None:
    if ":" not in judge.verdict and judge.verdict not in NAMED:
        hint = did_you_mean(judge.verdict, NAMED)
        raise ConfigError(f"judge.verdict: unknown verdict {judge.verdict!r}; {hint} A verdict of your own is written module:Class")
    if taken := sorted(_JUDGES_OWN & judge.params.keys()):
        raise ConfigError(
            f"judge.params: {taken[0]!r} is not a parameter of a request; if it is a setting of the judge, write it beside params"
        )


def _check_columns(config: RewardConfig) -> None:
    known = ITEM | (prompt_fields(config) if config.judge is not None else frozenset())
    for field in config.columns.keys() - known:
        raise ConfigError(f"columns: unknown field {field!r}; {did_you_mean(field, sorted(known), otherwise='the fields are')}")


def _check_model(model: str, client: QRewardClient, setting: str) -> None:
    patterns = [route.pattern for route in client.list_routes()]
    if not any(matches(pattern, model) for pattern in patterns):
        # lower cutoff: a pattern is shorter than the names it matches
        hint = did_you_mean(model, patterns, cutoff=0.4, otherwise="the routes are")
        raise ConfigError(f"{setting}: no endpoint of the client serves the model {model!r}; {hint}")
