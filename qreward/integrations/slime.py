"""Rewards of a judge or a reward model in slime: functions for ``--custom-rm-path`` and related options. Does not need slime.

slime awaits the functions in one event loop of one process, with as many concurrent calls as there are samples. It has no time limit, and
an exception ends the run. slime needs a number for each sample (None breaks its tensors), and trains on it unless ``sample.remove_sample``
is set. A sample that could not be judged is therefore removed from the loss, and its reward is one that hardly changes the baseline.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any
from weakref import WeakKeyDictionary

from qreward.errors import QRewardError
from qreward.integrations.trainers import Adapter, RewardConfig, Rewarder, Scored

__all__ = ["DEADLINE", "group_reward", "normalize_rewards", "reward"]

DEADLINE = 100.0
"""Default number of seconds for one reward; slime's own remote reward model allows 120 per attempt."""
SETTINGS = "qreward_config"
"""Attribute of slime's arguments that holds the settings, or the path of their file. The file of ``--custom-config-path`` may set it."""
NOTE = "qreward"
"""Key of ``sample.metadata`` that holds how the sample was judged."""
MEMORY = 1024
"""Number of recent rewards whose mean replaces a missing reward if the same call has no other reward."""
LOG_EVERY = 100
"""Number of failures between two log messages."""
MOST_LOST = 1000
"""Number of failures in a row after which the run ends, because nothing would be left to train on."""
CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Values of ``--advantage-estimator`` for which slime subtracts the mean of the group from each reward."""
SCALED = ("grpo", "gspo", "cispo")
"""Values for which slime also divides by the standard deviation, with ``--grpo-std-normalization``."""
EPSILON = 1e-6
"""Added to the standard deviation, as in slime."""

_ADAPTER = Adapter(
    trainer="slime",
    deadline=DEADLINE,
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("label",)},
    missing="none",  # see Fallbacks
)
_log = logging.getLogger("qreward.integrations.slime")


async def reward(args: Any, sample: Any, **kwargs: Any) -> Any:  # noqa: ARG001 - slime's signature
    """Score a sample, or each sample of a list. For ``--custom-rm-path qreward.integrations.slime.reward``.

    Args:
        args: slime's arguments.
        sample: one of slime's ``Sample``, or a list of them, which slime passes if one generation produces several.

    Returns:
        A float; a dict if ``--reward-key`` is set (in an evaluation also if ``--eval-reward-key`` is set). For a list of samples, a list.

    Raises:
        QRewardError: a reward is missing and ``on_failure`` is ``raise``, or ``MOST_LOST`` rewards in a row were missing.
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
    made = _ADAPTER.rewarder(getattr(args, SETTINGS, None))
    scored = await _ADAPTER.score(made, map(_row, samples))
    keys = _keys(args, samples)
    values = [_value(each, keys) for each in scored]
    fallback = Fallbacks.of(made, evaluating=_is_evaluation(samples)).fallback_for(values, scored)
    removes = isinstance(made.config.on_failure, str)
    return [_rewarded(sample, each, value, fallback, keys, removes) for sample, each, value in zip(samples, scored, values, strict=True)]


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


def _rewarded(sample: Any, scored: Scored, value: float | None, fallback: float, keys: Sequence[str], removes: bool) -> Any:
    """Return the reward of a sample in slime's form, and write into the sample how it was judged, and whether it leaves the loss."""
    removed = value is None and removes
    if isinstance(sample.metadata, dict):
        sample.metadata[NOTE] = {"ok": scored.ok, "seconds": scored.seconds, "reason": scored.reason, "removed": removed}
    if removed:
        sample.remove_sample = True
    number = fallback if value is None else value
    if not keys:
        return number
    attributes = (scored.verdict.attributes or {}) if scored.verdict is not None else {}
    return scored.metrics("judge_", "ok", "seconds") | dict.fromkeys(keys, number) | dict(attributes)


class Fallbacks:
    """Chooses the rewards of samples that could not be judged.

    If ``on_failure`` is a number, that number is the reward, and slime trains on it. ``raise`` raises the error. Otherwise the sample is
    removed from the loss. Its reward is then the mean of the other rewards of the same call; without any, the mean of the last ``MEMORY``
    rewards; without any, the middle of the judge's range. After ``MOST_LOST`` failures in a row the next error is raised.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._scores: deque[float] = deque(maxlen=MEMORY)
        self._failed = 0
        self._in_a_row = 0

    @classmethod
    def of(cls, made: Rewarder, *, evaluating: bool) -> Fallbacks:
        """Return the fallbacks of a rewarder. An evaluation has its own, because its samples differ from those of training."""
        return _BY_REWARDER.setdefault(made, (cls(made.config), cls(made.config)))[evaluating]

    def fallback_for(self, values: Sequence[float | None], scored: Sequence[Scored]) -> float:
        """Return the reward for the failed samples of a call, or raise the last error."""
        failure = self._config.on_failure
        error = self._count(scored)
        if error is not None and (failure == "raise" or (isinstance(failure, str) and self._in_a_row > MOST_LOST)):
            raise error
        present = [value for value in values if value is not None]
        self._scores.extend(present)
        return fmean(present or self._scores or [middle(self._config)]) if isinstance(failure, str) else float(failure)

    def _count(self, scored: Sequence[Scored]) -> QRewardError | None:
        """Return the last error, if any. The first of every ``LOG_EVERY`` failures is logged."""
        last = None
        for each in scored:
            self._in_a_row = 0 if each.ok else self._in_a_row + 1
            if each.error is not None:
                last = each.error
                if self._failed % LOG_EVERY == 0:
                    _log.warning("%d rewards are missing so far; the last: %s", self._failed + 1, each.reason)
                self._failed += 1
        return last


_BY_REWARDER: WeakKeyDictionary[Rewarder, tuple[Fallbacks, Fallbacks]] = WeakKeyDictionary()


def middle(config: RewardConfig) -> float:
    """Return the middle of the score range of a judge, or of a cascade's last stage; 0 for a reward model, whose range is unknown."""
    judge = list(config.stages.values())[-1]
    if isinstance(judge, str):
        return 0.0
    is_share = judge.rubric is not None or judge.verdict == "yes_no"
    return fmean(judge.range or ((0.0, 1.0) if is_share else judge.scale))


def normalize_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the raw rewards, and the rewards normalized within groups as slime does, but over the judged samples only.

    For ``--custom-reward-post-process-path qreward.integrations.slime.normalize_rewards``. ``remove_sample`` excludes a sample from the
    loss, but not from the mean and the standard deviation of its group, which slime takes over all samples. Groups are those of
    ``sample.group_index``, or each ``args.n_samples_per_prompt`` consecutive samples if a sample has none. A sample that was not judged
    gets a normalized reward of 0, which means no advantage.
    """
    raw = [sample.get_reward_value(args) for sample in samples]
    if args.advantage_estimator not in CENTRED or not args.rewards_normalization:
        return raw, raw
    scales = args.advantage_estimator in SCALED and args.grpo_std_normalization
    normal = [0.0] * len(raw)
    for places in _groups(args, samples):
        judged = [at for at in places if not _was_removed(samples[at])]
        for at, value in zip(judged, _normalized([raw[at] for at in judged], scales=scales), strict=True):
            normal[at] = value
    return raw, normal


def _was_removed(sample: Any) -> bool:
    """Whether a sample was removed from the loss because it could not be judged."""
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    return bool(metadata.get(NOTE, {}).get("removed"))


def _groups(args: Any, samples: Sequence[Any]) -> Iterable[list[int]]:
    indexed = all(sample.group_index is not None for sample in samples)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, sample in enumerate(samples):
        groups[sample.group_index if indexed else at // args.n_samples_per_prompt].append(at)
    return groups.values()


def _normalized(rewards: Sequence[float], *, scales: bool) -> list[float]:
    if not rewards:
        return []
    mean = fmean(rewards)
    deviation = stdev(rewards, mean) if len(rewards) > 1 else 0.0
    return [(reward - mean) / (deviation + EPSILON if scales else 1.0) for reward in rewards]
