"""Rewards of a judge or a reward model in slime: functions for ``--custom-rm-path`` and related options. This module does not need slime.

slime trains on each sample unless ``sample.remove_sample`` is set, and still counts the number of a removed sample in the baseline.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any
from weakref import WeakKeyDictionary

from qreward.integrations.trainers import Adapter, RewardConfig, Rewarder, Scored

__all__ = ["group_reward", "normalize_rewards", "reward"]

NOTE = "qreward"
"""Key of ``sample.metadata`` under which the outcome of judging the sample is stored."""
MOST_LOST = 1000
"""Number of failures in a row after which the run ends, because no sample would be left to train on."""
CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Values of ``--advantage-estimator`` for which slime subtracts the mean of the group from each reward."""
SCALED = ("grpo", "gspo", "cispo")
"""Those for which slime also divides by the standard deviation of the group, if ``--grpo-std-normalization`` is set."""

ADAPTER = Adapter(
    trainer="slime",
    deadline=100.0,  # slime allows its own remote reward model 120 seconds per attempt
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("label",)},
    missing="none",
    logs=False,
    no_groups="where reward() has one sample; use --group-rm --custom-rm-path qreward.integrations.slime.group_reward",
)
_GROUPS = replace(ADAPTER, no_groups="")
_log = logging.getLogger("qreward.integrations.slime")


async def reward(args: Any, sample: Any, **kwargs: Any) -> Any:  # noqa: ARG001 - slime's signature
    """Score a sample, or each sample of a list. The option is ``--custom-rm-path qreward.integrations.slime.reward``.

    A reward is a float, or a dict if ``--reward-key`` is set, or, in an evaluation, ``--eval-reward-key``.

    Raises:
        QRewardError: a reward is missing and ``on_failure`` is ``raise``, or ``MOST_LOST`` rewards in a row were missing.
        ConfigError: the settings are missing or wrong.
    """
    if isinstance(sample, list | tuple):
        return await _rewards(args, sample)
    return (await _rewards(args, [sample]))[0]


async def group_reward(args: Any, samples: Sequence[Any], **kwargs: Any) -> list[Any]:  # noqa: ARG001 - slime's signature
    """Score a group, as :func:`reward`. The options are ``--group-rm --custom-rm-path qreward.integrations.slime.group_reward``.

    A sample that could not be judged gets the mean of its group, so it does not change the baseline.
    """
    return await _rewards(args, samples, _GROUPS)


async def _rewards(args: Any, samples: Sequence[Any], adapter: Adapter = ADAPTER) -> list[Any]:
    made = adapter.rewarder(getattr(args, "qreward_config", None))
    scored = await adapter.score(made, map(_row, samples))
    # slime passes no argument that shows whether it trains or evaluates; only training samples have a ``group_index``
    evaluating = all(getattr(sample, "group_index", None) is None for sample in samples)
    training_key, evaluation_key = getattr(args, "reward_key", None), getattr(args, "eval_reward_key", None)
    keys = [key for key in (training_key, evaluation_key) if key] if training_key or evaluating else []
    recent = _RECENT.setdefault(made, (Recent(), Recent()))[evaluating]
    values: list[float | None] = []  # what slime will train on; None for a sample that is removed
    for each, reward in zip(scored, [adapter.reward(each, made.config) for each in scored], strict=True):
        attributes = _attributes(each)
        values.append(next((attributes[key] for key in keys if key in attributes), reward))
        recent.missing = 0 if each.ok else recent.missing + 1
        recent.failed += not each.ok
        if not each.ok and recent.failed % 100 == 1:
            _log.warning("%d rewards are missing so far; the last: %s", recent.failed, each.reason)
        if each.error is not None and reward is None and recent.missing > MOST_LOST:
            raise each.error
    judged = [value for each, value in zip(scored, values, strict=True) if each.ok and value is not None]
    recent.rewards.extend(judged)
    fallback = fmean(judged or recent.rewards or [middle(made.config)])
    rewarded: list[Any] = []
    for sample, each, value in zip(samples, scored, values, strict=True):
        if isinstance(sample.metadata, dict):
            sample.metadata[NOTE] = each.metrics("") | {"ok": each.ok, "reason": each.reason, "removed": value is None}
        if value is None:
            sample.remove_sample = True
        number = fallback if value is None else value
        rewarded.append(each.metrics() | dict.fromkeys(keys, number) | _attributes(each) if keys else number)
    return rewarded


def _row(sample: Any) -> dict[str, Any]:
    """Return the entries of the metadata of a sample as columns, the metadata as a whole, and the fields of the sample."""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return {**metadata, "metadata": metadata, "prompt": sample.prompt, "response": sample.response, "label": sample.label}


def _attributes(scored: Scored) -> dict[str, float]:
    return dict((scored.verdict.attributes if scored.verdict is not None else None) or {})


@dataclass(eq=False)
class Recent:
    """The last rewards, and the numbers of failures in a row and of all: once for training, and once for evaluations."""

    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=1024))
    missing: int = 0
    failed: int = 0


_RECENT: WeakKeyDictionary[Rewarder, tuple[Recent, Recent]] = WeakKeyDictionary()


def middle(config: RewardConfig) -> float:
    """Return the middle of the scores of a ranking, a judge, or a cascade's last stage; 0 for a reward model, whose range is unknown."""
    if config.rank is not None:
        return 0.5 if config.rank == "scores" else 0.0
    judge = list(config.stages.values())[-1]
    if isinstance(judge, str):
        return 0.0
    is_share = judge.has_criteria or judge.verdict == "yes_no"
    return fmean(judge.range or ((0.0, 1.0) if is_share else judge.scale))


def normalize_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the raw rewards and the normalized rewards. Rewards are normalized within groups as in slime, but only over judged samples.

    The option is ``--custom-reward-post-process-path qreward.integrations.slime.normalize_rewards``. A sample that was not judged gets a
    normalized reward of 0, which means no advantage.
    """
    raw = [sample.get_reward_value(args) for sample in samples]
    if args.advantage_estimator not in CENTRED or not args.rewards_normalization:
        return raw, raw
    indexed = all(sample.group_index is not None for sample in samples)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, sample in enumerate(samples):
        noted = isinstance(sample.metadata, dict)  # a filter of the user may remove a sample that was judged
        if not (sample.metadata.get(NOTE, {}).get("removed") if noted else sample.remove_sample):
            groups[sample.group_index if indexed else at // args.n_samples_per_prompt].append(at)
    normal = [0.0] * len(raw)
    for judged in groups.values():
        mean = fmean(raw[at] for at in judged)
        scale = 1.0
        if args.advantage_estimator in SCALED and args.grpo_std_normalization:
            scale = (stdev([raw[at] for at in judged], mean) if len(judged) > 1 else 0.0) + 1e-6  # as in slime
        for at in judged:
            normal[at] = (raw[at] - mean) / scale
    return raw, normal
