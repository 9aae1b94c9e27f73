"""The reward functions that slime awaits. They are ``async def`` functions whose parameters have the names that slime expects.

slime calls them in one event loop of one process, with as many concurrent calls as there are samples. It has no time limit, and an
exception ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qreward.integrations.slime.failures import Fallback, Fallbacks, note
from qreward.integrations.trainers import DefaultColumns, Rewarder, Scored, item_of, prompt_fields, rewarder

DEADLINE = 100.0
"""Default number of seconds for one reward; slime's own remote reward model allows 120 per attempt."""
SETTINGS = "qreward_config"
"""Attribute of slime's arguments that holds the settings, or the path of their file. The file of ``--custom-config-path`` may set it."""
DEFAULT_COLUMNS: DefaultColumns = {"prompt": ("prompt",), "response": ("response",), "reference": ("label",)}


async def reward(args: Any, sample: Any, **kwargs: Any) -> Any:  # noqa: ARG001 - slime's signature
    """Score a sample, or each sample of a list. For ``--custom-rm-path qreward.integrations.slime.reward``.

    Args:
        args: slime's arguments.
        sample: one of slime's ``Sample``, or a list of them, which slime passes if one generation produces several.

    Returns:
        A float, or a dict if ``--reward-key`` (in an evaluation: ``--eval-reward-key``) is set; a list of these for a list.

    Raises:
        QRewardError: a reward is missing, and ``on_failure`` is ``raise`` or too many in a row were missing.
        ConfigError: the settings are missing or wrong.
    """
    if isinstance(sample, list | tuple):
        return await _rewards(args, sample)
    return (await _rewards(args, [sample]))[0]


async def group_reward(args: Any, samples: Sequence[Any], **kwargs: Any) -> list[Any]:  # noqa: ARG001 - slime's signature
    """Score a group. For ``--group-rm --custom-rm-path qreward.integrations.slime.group_reward``.

    Unlike with :func:`reward`, a sample that could not be judged gets the mean of its group, so that it does not move the baseline.

    Raises:
        QRewardError: as in :func:`reward`.
        ConfigError: as in :func:`reward`.
    """
    return await _rewards(args, samples)


async def _rewards(args: Any, samples: Sequence[Any]) -> list[Any]:
    made = rewarder(getattr(args, SETTINGS, None), deadline=DEADLINE)
    scored = await made.score_many(_items(made, samples))
    keys = _keys(args, samples)
    values = [_value(each, keys) for each in scored]
    fallback = Fallbacks.of(made, evaluating=_is_evaluation(samples)).settle(values, scored)
    return [_settled(sample, each, value, fallback, keys) for sample, each, value in zip(samples, scored, values, strict=True)]


def _items(made: Rewarder, samples: Sequence[Any]) -> list[dict[str, Any]]:
    assert made.config is not None
    columns, named = made.config.columns, prompt_fields(made.config)
    return [item_of(_row(sample), columns, DEFAULT_COLUMNS, named) for sample in samples]


def _row(sample: Any) -> dict[str, Any]:
    """Return the fields of a sample by name, its metadata as a whole, and the entries of the metadata whose names do not clash."""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return {**metadata, "metadata": metadata, "prompt": sample.prompt, "response": sample.response, "label": sample.label}


def _keys(args: Any, samples: Sequence[Any]) -> list[str]:
    """Return the keys under which slime looks up a reward; empty if it expects a number. In an evaluation slime uses both of its keys."""
    training, evaluation = getattr(args, "reward_key", None), getattr(args, "eval_reward_key", None)
    if not training and not _is_evaluation(samples):
        return []
    return [key for key in (training, evaluation) if key]


def _is_evaluation(samples: Sequence[Any]) -> bool:
    """Whether the samples are of an evaluation. slime does not say so to a reward function, but only training samples belong to a group."""
    return all(getattr(sample, "group_index", None) is None for sample in samples)


def _value(scored: Scored, keys: Sequence[str]) -> float | None:
    """Return the value that slime will train on: the attribute that its key names, if the reward model returned one, else the score."""
    if scored.verdict is None:
        return None
    attributes = scored.verdict.attributes or {}
    return next((attributes[key] for key in keys if key in attributes), scored.verdict.score)


def _settled(sample: Any, scored: Scored, value: float | None, fallback: Fallback, keys: Sequence[str]) -> Any:
    removed = value is None and fallback.removes
    note(sample, scored, removed=removed)
    if removed:
        sample.remove_sample = True
    number = fallback.score if value is None else value
    if not keys:
        return number
    attributes = (scored.verdict.attributes or {}) if scored.verdict is not None else {}
    return {"judge_ok": float(scored.ok), "judge_seconds": scored.seconds} | dict.fromkeys(keys, number) | dict(attributes)
