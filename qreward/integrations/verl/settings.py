"""Converts verl's ``reward_kwargs`` to the settings of an adapter. Knows the arguments that verl adds, but does not import verl."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers import RewardConfig, load_reward_config
from qreward.settings.files import read_settings
from qreward.spelling import closest

CONFIG = "config"
"""The one key that is not a setting of ``RewardConfig``: the path of the file with the other settings."""

ROUTER = "reward_router_address"
HOSTS = frozenset({ROUTER, "reward_model_tokenizer"})
"""Arguments that verl passes if it serves a reward model itself."""

_SETTINGS = [CONFIG, *RewardConfig.model_fields]
_LOGGER = logging.getLogger(__name__)
_READ: dict[str, RewardConfig] = {}
_SAID: set[str] = set()


def settings_of(given: Mapping[str, Any], dialect: str = "vllm") -> RewardConfig:
    """Return the settings in the keyword arguments of ``compute_score``. Each combination is read once.

    The file that ``config`` names is read first; settings beside it override those of the file. Without any setting, the file that
    ``QREWARD_REWARD`` names is read. If the settings configure no client and verl serves a model itself, requests go to that model.

    Args:
        given: ``reward_kwargs`` and verl's additions. An unknown name is ignored with one warning, but a near miss of a setting is an
            error.
        dialect: ``kind`` of the servers behind verl's router, as in the settings of an endpoint.

    Raises:
        ConfigError: a setting is unknown or wrong, or there are no settings.
    """
    ours = {name: plain(value) for name, value in given.items() if name in _SETTINGS and value is not None}
    key = json.dumps([ours, str(given.get(ROUTER)), dialect], sort_keys=True, default=repr)
    known = _READ.get(key)
    if known is None:
        _look_at(given.keys() - set(_SETTINGS) - HOSTS)
        known = _READ[key] = _checked(_with_router(_read(ours), given.get(ROUTER), dialect))
    return known


def plain(value: Any) -> Any:
    """Convert arrays and OmegaConf containers to lists and dicts; return anything else unchanged."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]
    return value


def _read(ours: dict[str, Any]) -> RewardConfig:
    if not ours:
        return load_reward_config()
    file = ours.pop(CONFIG, None)
    if file is None:
        return load_reward_config(ours, place="reward_kwargs")
    content, _ = read_settings(file, empty="it must hold at least judge or reward_model")
    return load_reward_config({**content, **ours}, place=f"{file} and reward_kwargs") if ours else load_reward_config(file)


def _with_router(config: RewardConfig, address: str | None, dialect: str) -> RewardConfig:
    if config.client is not None or not address:
        return config
    settings = config.model_dump(exclude_unset=True) | {"client": {"endpoints": [_router(address, dialect)]}}
    return load_reward_config(settings, place=config.place)


def _router(address: str, dialect: str) -> dict[str, Any]:
    return {"base_url": f"http://{address}/v1", "name": "verl-router", "kind": dialect, "proxy": ""}


def _checked(config: RewardConfig) -> RewardConfig:
    if config.on_failure == "none":
        raise ConfigError(
            "on_failure: none is not possible with verl, where one None removes the rewards of its whole batch; "
            "use raise (the default) or a number"
        )
    return config


def _look_at(strange: set[str]) -> None:
    for name in sorted(strange - _SAID):
        if near := closest(name, _SETTINGS, cutoff=0.8):
            raise ConfigError(f"reward_kwargs: unknown setting {name!r}; did you mean {near[0]!r}?")
        _SAID.add(name)
        _LOGGER.warning("reward_kwargs: %r is not a setting of qreward and is ignored", name)
