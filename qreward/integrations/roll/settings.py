"""Converts the keys of a reward worker in ROLL's YAML to the settings of an adapter. Knows ROLL's keys, but none of its classes.

ROLL drops unknown keys. The settings are therefore in ``reward_manager_config``, a list of free mappings that ROLL keeps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers import RewardConfig, load_reward_config
from qreward.integrations.trainers.settings import VARIABLE
from qreward.settings.files import read_settings

KEYS = ("judge_model_name", "judge_api_url", "judge_api_key", "judge_prompt")
"""Keys of ROLL's own judge that this adapter accepts unchanged."""
NAMED_PROMPT = {"verdict": "yes_no", "response_format": "none"}
"""Settings for a prompt of ROLL's own, selected by name: each of them asks for a bare YES or NO."""


def settings_of(worker: Any, prompts: Mapping[str, str]) -> RewardConfig:
    """Return the settings of one reward worker. ROLL's keys override the file, and ``reward_manager_config`` overrides both.

    Args:
        worker: ROLL's ``RewardConfig`` of the domain, or any object with its attributes.
        prompts: name -> template of ROLL's own prompts.

    Raises:
        ConfigError: a setting is wrong, or no judge and no reward model is configured.
    """
    file = (getattr(worker, "system_envs", None) or {}).get(VARIABLE) or os.environ.get(VARIABLE)
    layers: list[Mapping[str, Any]] = [read_settings(file, empty="it must hold at least judge or reward_model")[0]] if file else []
    layers += [_built_in(worker, prompts), *_own(worker)]
    settings: dict[str, Any] = reduce(_over, layers, {})
    if not {"judge", "reward_model"} & settings.keys():
        raise ConfigError(
            "no judge is configured; set judge_model_name, or judge or reward_model in reward_manager_config, "
            f"or name a file with them in system_envs: {{{VARIABLE}: /path/reward.yaml}}"
        )
    return load_reward_config(settings)


def _own(worker: Any) -> Iterable[Mapping[str, Any]]:
    entries = getattr(worker, "reward_manager_config", None) or []
    if isinstance(entries, Mapping) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError("reward_manager_config must be a list of mappings, such as [{deadline: 120, judge: {samples: 3}}]")
    return entries


def _built_in(worker: Any, prompts: Mapping[str, str]) -> dict[str, Any]:
    model, urls, key, prompt = (getattr(worker, name, None) for name in KEYS)
    kind = getattr(worker, "judge_model_type", None)
    if kind not in (None, "api"):
        raise ConfigError(
            f"judge_model_type: {kind} makes ROLL run the judge itself; serve the judge (vLLM, SGLang, ...), remove judge_model_type, "
            "and set judge_api_url to its address (several addresses are separated by commas)"
        )
    judge = ({"model": model} if model else {}) | (_prompt(prompt, prompts) if prompt else {})
    client = {"endpoints": [_endpoint(url, key) for url in urls.split(",") if url.strip()]} if urls else None
    if key and not urls:
        raise ConfigError("judge_api_key is set without judge_api_url; set judge_api_url too")
    return ({"judge": judge} if judge else {}) | ({"client": client} if client else {})


def _endpoint(url: str, key: str | None) -> dict[str, Any]:
    return {"base_url": url.strip()} | ({"api_key": key} if key else {})


def _prompt(given: str, prompts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for a template, or for the name of one of ROLL's templates, which call the prompt ``question``."""
    template = prompts.get(given, given)
    if "{" not in template:
        known = ", ".join(map(repr, sorted(prompts)))
        raise ConfigError(f"judge_prompt {given!r} is neither a template nor the name of one of ROLL's prompts, which are {known}")
    return {"prompt": template.replace("{question}", "{prompt}")} | (NAMED_PROMPT if given in prompts else {})


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; ``above`` takes precedence."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _over(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged
