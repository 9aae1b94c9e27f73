"""Rewards of a judge or a reward model in verl, which loads them by the name of this package."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qreward.engine.portal import portal
from qreward.errors import ConfigError, closest
from qreward.integrations.trainers import Adapter, RewardConfig, Rewarder, Scored, load_reward_config
from qreward.integrations.trainers.texts import plain
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint

__all__ = ["compute_score", "compute_scores"]

ROUTER = "reward_router_address"
"""Argument that verl passes if it serves a reward model itself."""
LIMITED = "verl.experimental.reward_loop.reward_manager.limited"
"""Module of verl's manager ``rate_limited``, which turns every error into a reward of 0.0."""
NOTE = "A missing reward ends the run. To continue with a number in its place, set on_failure to that number."
PROMPTS = ("prompt", "question", "problem", "query", "raw_prompt")

ADAPTER = Adapter(
    trainer="verl",
    deadline=240.0,  # verl's own managers allow 300 seconds, or have no limit
    columns={"prompt": PROMPTS, "response": ("solution_str",), "reference": ("ground_truth",)},
    logs=False,
    none_unsupported="where one None removes the rewards of its whole batch; use raise (the default) or a number",
    no_groups="which scores each sample by itself; leave it out, or call compute_scores in your own code with whole groups",
)
_GROUPS = replace(ADAPTER, no_groups="")

_SETTINGS = ["config", *RewardConfig.model_fields]
"""Keys of ``reward_kwargs``. The value of ``config`` is the path of a settings file."""
_log = logging.getLogger(__name__)
_WARNED: set[str] = set()


async def compute_score(
    data_source: Any, solution_str: str | None, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Score one response. verl calls this function for each sample.

    Args:
        data_source, ground_truth, extra_info: columns; ``extra_info`` has the question, because verl passes no prompt to a reward function.
        solution_str: the response. None means that there is no response, and therefore no reward.
        kwargs: ``reward_kwargs`` of the configuration: ``config``, the path of a settings file, and settings of
            :class:`~qreward.integrations.trainers.RewardConfig`; and verl's own additions.

    Raises:
        ConfigError: a setting is wrong, or a column does not exist.
        QRewardError: there is no reward and ``on_failure`` is not a number.

    Example:
        ``reward.custom_reward_function.path=pkg://qreward.integrations.verl``
        ``+reward.custom_reward_function.reward_kwargs.config=/path/to/reward.yaml``
    """
    row = _row(data_source, solution_str, ground_truth, extra_info)
    try:
        return (await score_rows(ADAPTER, ADAPTER.rewarder(source_of(kwargs), load), [row]))[0]
    except Exception as error:
        manager = getattr(sys.modules.get(LIMITED), "RateLimitedRewardManager", None)
        if getattr(manager, "_class_initialized", False) and LIMITED not in _WARNED:
            _WARNED.add(LIMITED)
            said = "verl's manager rate_limited turns this error and all others into a reward of 0.0; use naive or QRewardManager"
            _log.error("%s, with limits in client: %s", said, error)
        raise


def compute_scores(
    data_sources: Sequence[Any],
    solution_strs: Sequence[str | None],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None],
    **kwargs: Any,
) -> list[dict[str, Any]]:
    """Score a batch, whose arguments are lists of those of :func:`compute_score`. With ``rank``, the responses to one prompt are ranked.

    verl before 0.7.1 calls this function in its reward manager ``batch``. No manager of later versions does; it is for your own code.

    Raises:
        ValueError: the lists differ in length.
    """
    columns = {"data_sources": data_sources, "solution_strs": solution_strs, "ground_truths": ground_truths, "extra_infos": extra_infos}
    lengths = {name: len(values) for name, values in columns.items()}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"the lists of compute_scores differ in length: {lengths}; pass one value for each sample in each list")
    rows = [*map(_row, *columns.values())]
    return portal().call(score_rows, _GROUPS, _GROUPS.rewarder(source_of(kwargs), load), rows)


def _row(data_source: Any, solution_str: str | None, ground_truth: Any, extra_info: Mapping[str, Any] | None) -> dict[str, Any]:
    extra = extra_info or {}
    return {**extra, "extra_info": extra, "data_source": data_source, "solution_str": solution_str, "ground_truth": ground_truth}


async def score_rows(adapter: Adapter, made: Rewarder, rows: Sequence[Mapping[str, Any]], step: int | None = None) -> list[dict[str, Any]]:
    return [result_of(each, made.config) for each in await adapter.score(made, rows, step=step)]


def result_of(scored: Scored, config: RewardConfig) -> dict[str, Any]:
    """Return the result for verl. If scoring failed and ``on_failure`` is not a number, raise the error, because verl needs a number."""
    if scored.error is not None and NOTE not in getattr(scored.error, "__notes__", ()):  # identical samples may share one error
        scored.error.add_note(NOTE)
    return {"score": ADAPTER.reward(scored, config), "judge_ok": float(scored.ok), "judge_error": scored.reason, **scored.metrics()}


def source_of(given: Mapping[str, Any], kind: str = "vllm") -> dict[str, Any]:
    """Return the settings in the keyword arguments of ``compute_score``, for :func:`load`. Raises ``ConfigError`` for a misspelled name.

    If verl serves a model itself, on servers of this ``kind``, they also have its address.
    """
    for name in sorted(given.keys() - {ROUTER, "reward_model_tokenizer", *_SETTINGS} - _WARNED):
        if near := closest(name, _SETTINGS, cutoff=0.8):
            raise ConfigError(f"reward_kwargs: unknown setting {name!r}; did you mean {near[0]!r}?")
        _WARNED.add(name)
        _log.warning("reward_kwargs: %r is not a setting of qreward and is ignored", name)
    ours = {name: plain(value) for name, value in given.items() if name in _SETTINGS and value is not None}
    router = given.get(ROUTER)
    return ours | {ROUTER: (router, kind)} if router else ours


def load(source: Mapping[str, Any]) -> RewardConfig:
    """Load settings over those of the file in ``config``. If they configure no client, requests go to the model that verl serves."""
    above = dict(source)
    file, served = above.pop("config", None), above.pop(ROUTER, None)
    place = f"{file} and reward_kwargs" if file else "reward_kwargs"
    known = load_reward_config(file or above or None, over=above if file else None, place=place if above else None)
    if known.client is None and served:
        endpoint = Endpoint(f"http://{served[0]}/v1", name="verl-router", kind=served[1], proxy="")
        known = load_reward_config(known, over={"client": ClientConfig(endpoints=(endpoint,))})
    return known


def __getattr__(name: str) -> Any:
    if name != "QRewardManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("qreward.integrations.verl.manager").QRewardManager
