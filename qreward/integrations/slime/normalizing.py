"""Group normalization of rewards that excludes samples which could not be judged. Knows slime's arguments, but no tensors.

``remove_sample`` excludes a sample from the loss, but not from the mean and the standard deviation of its group, which slime takes over all
samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from qreward.integrations.slime.failures import was_removed

CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Values of ``--advantage-estimator`` for which slime subtracts the mean of the group from each reward."""
SCALED = ("grpo", "gspo", "cispo")
"""Values for which slime also divides by the standard deviation, with ``--grpo-std-normalization``."""
EPSILON = 1e-6
"""Added to the standard deviation, as in slime."""


def normalize_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the raw rewards, and the rewards normalized within groups as slime does, but over the judged samples only.

    For ``--custom-reward-post-process-path qreward.integrations.slime.normalize_rewards``. Groups are those of ``sample.group_index``, or
    each ``args.n_samples_per_prompt`` consecutive samples if a sample has none. A sample that was not judged gets 0, which is no advantage.
    """
    raw = [sample.get_reward_value(args) for sample in samples]
    if args.advantage_estimator not in CENTRED or not args.rewards_normalization:
        return raw, raw
    scales = args.advantage_estimator in SCALED and args.grpo_std_normalization
    normal = [0.0] * len(raw)
    for places in _groups(args, samples):
        judged = [at for at in places if not was_removed(samples[at])]
        for at, value in zip(judged, _normalized([raw[at] for at in judged], scales=scales), strict=True):
            normal[at] = value
    return raw, normal


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
