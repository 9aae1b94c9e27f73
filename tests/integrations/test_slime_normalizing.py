"""Group-normalised rewards without the samples that could not be judged; where all were, what slime itself computes."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.integrations.slime import normalize_rewards


def arguments(estimator: str = "grpo", **given: Any) -> SimpleNamespace:
    usual = {"rewards_normalization": True, "grpo_std_normalization": True, "n_samples_per_prompt": 2, "reward_key": None}
    return SimpleNamespace(**(usual | {"advantage_estimator": estimator} | given))


def sample(reward: float, group: int | None, *, removed: bool = False) -> Any:
    metadata = {"qreward": {"removed": True}} if removed else {}
    return SimpleNamespace(group_index=group, metadata=metadata, get_reward_value=lambda args: reward)


def test_groups_are_centred_and_scaled_each_for_itself_in_the_order_of_the_samples() -> None:
    samples = [sample(1.0, 0), sample(10.0, 1), sample(0.0, 0), sample(30.0, 1)]
    raw, normal = normalize_rewards(arguments(), samples)
    assert raw == [1.0, 10.0, 0.0, 30.0]
    half = math.sqrt(0.5)
    assert normal == pytest.approx([half, -half, -half, half], rel=1e-5)


def test_what_could_not_be_judged_changes_no_other_advantage_and_has_none() -> None:
    judged = [sample(1.0, 0), sample(0.0, 0), sample(0.5, 0)]
    alone = normalize_rewards(arguments(), judged)[1]
    raw, normal = normalize_rewards(arguments(), [judged[0], sample(0.0, 0, removed=True), *judged[1:]])
    assert raw == [1.0, 0.0, 0.0, 0.5]
    assert normal == [alone[0], 0.0, *alone[1:]]


def test_a_group_with_one_judged_sample_or_none_has_no_advantages() -> None:
    samples = [sample(1.0, 0), sample(0.5, 0, removed=True), sample(0.5, 1, removed=True)]
    assert normalize_rewards(arguments(), samples)[1] == [0.0, 0.0, 0.0]


def test_without_group_indices_groups_are_so_many_in_a_row() -> None:
    samples = [sample(reward, None) for reward in (1.0, 0.0, 5.0, 5.0)]
    assert normalize_rewards(arguments(grpo_std_normalization=False), samples)[1] == [0.5, -0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("given_arguments", "expected"),
    [
        (arguments("ppo"), [1.0, 0.0]),
        (arguments(rewards_normalization=False), [1.0, 0.0]),
        (arguments("reinforce_plus_plus_baseline"), [0.5, -0.5]),
        (arguments("gspo", grpo_std_normalization=False), [0.5, -0.5]),
    ],
)
def test_what_slime_does_not_normalise_is_left_as_it_is(given_arguments: Any, expected: list[float]) -> None:
    assert normalize_rewards(given_arguments, [sample(1.0, 0), sample(0.0, 0)])[1] == expected


@given(st.lists(st.lists(st.floats(-10, 10), min_size=2, max_size=8), min_size=1, max_size=5))
def test_with_all_judged_it_is_the_mean_and_the_sample_deviation_of_each_group(groups: list[list[float]]) -> None:
    samples = [sample(reward, index) for index, rewards in enumerate(groups) for reward in rewards]
    expected = [(reward - fmean(rewards)) / (stdev(rewards) + 1e-6) for rewards in groups for reward in rewards]
    assert normalize_rewards(arguments(), samples)[1] == pytest.approx(expected, rel=1e-6, abs=1e-6)
