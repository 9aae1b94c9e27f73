"""What a judge was given, looked at before anything is made of it. Knows the names of the settings and nothing of what they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError
from qreward.judge.config import JudgeConfig
from qreward.spelling import TYPO, closest

_OTHERS = ("client", "score", "owns_client", "hedge", "extra_headers", "extra_body")
_NAMES = (*JudgeConfig.model_fields, *_OTHERS)


def models(model: object) -> tuple[str, ...]:
    """The names of the models. Raises ``ConfigError``."""
    if isinstance(model, str):
        return (model,)
    if isinstance(model, bytes | Mapping) or not isinstance(model, Iterable):
        raise ConfigError(f"model must be the name of a model, or several, not {model!r}")
    return tuple(model)


def cache_path(cache: object) -> str | None:
    """The path of the cache's file, None for none. Raises ``ConfigError``."""
    if cache is None:
        return None
    if not isinstance(cache, str | Path) or not str(cache).strip():
        raise ConfigError(f"cache must be the path of a file, or None for none, not {cache!r}")
    return str(cache)


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a parameter that is meant as a setting of the judge: a server would take it, or not, and tell nobody."""
    for name in params:
        if name == "params":
            raise ConfigError("params: give parameters of requests by their names, such as temperature=0, or Judge(..., **params)")
        if name == "config":
            raise ConfigError("config: Judge() has no such argument; use Judge.from_config(client, config)")
        if name not in _NAMES and (near := closest(name, _NAMES, cutoff=TYPO)):
            raise ConfigError(
                f"{name!r} is not a setting of a judge; did you mean {near[0]!r}? "
                f"A parameter of the server with this name goes into extra_body={{{name!r}: ...}}"
            )


def config_of(config: object) -> JudgeConfig:
    """Settings, from themselves or a mapping of them. Raises ``ConfigError``."""
    if isinstance(config, Mapping):
        config = JudgeConfig(**config)
    if not isinstance(config, JudgeConfig):
        raise ConfigError(f"config must be a JudgeConfig, or a mapping of its settings, not {type(config).__name__}")
    taken = sorted(config.params.keys() & {*JudgeConfig.model_fields, "client", "score", "owns_client"})
    if taken:
        raise ConfigError(f"params: {taken[0]!r} is not a parameter of a request; if it is a setting of the judge, write it beside params")
    return config
