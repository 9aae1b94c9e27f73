"""slime's reward functions and its normalized rewards: one and many samples, numbers and dicts, and what becomes of a failure."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import REWARDER, FakeScorer, made_of, number_or_late
from hypothesis import given
from hypothesis import strategies as st

from qreward.errors import RequestTimeout
from qreward.integrations import slime
from qreward.integrations.trainers import Rewarder


@dataclass
class Sample:
    """As slime's, in what a reward function touches."""

    prompt: Any = "2 + 2?"
    response: str | None = "1"
    label: str | None = "4"
    reward: Any = None
    group_index: int | None = 0
    remove_sample: bool = False
    metadata: Any = field(default_factory=dict)


def arguments(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**({"reward_key": None, "eval_reward_key": None, "group_rm": False} | given))


class World:
    """What the functions find when they ask for their rewarder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scorer = FakeScorer(number_or_late)
        self.made: Rewarder = made_of(self.scorer)
        self.asked: list[Any] = []
        monkeypatch.setattr(REWARDER, "rewarder", self._rewarder)

    def _rewarder(self, source: Any, deadline: float, **_: Any) -> Rewarder:
        self.asked.append((source, deadline))
        return self.made

    def set(self, **settings: Any) -> None:
        self.made = made_of(self.scorer, **settings)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def one(sample: Any, **given: Any) -> Any:
    return await slime.reward(arguments(**given), sample)


async def group(*samples: Sample, **given: Any) -> list[Any]:
    return await slime.group_reward(arguments(group_rm=True, **given), list(samples))


def test_contract_the_functions_are_coroutine_functions_with_the_parameters_that_slime_looks_for() -> None:
    assert tuple(inspect.signature(slime.reward).parameters)[:2] == ("args", "sample")
    assert tuple(inspect.signature(slime.group_reward).parameters)[:2] == ("args", "samples")
    assert inspect.iscoroutinefunction(slime.reward)
    assert inspect.iscoroutinefunction(slime.group_reward)
    assert tuple(inspect.signature(slime.normalize_rewards).parameters) == ("args", "samples")
    assert slime.ADAPTER.deadline < 120


async def test_contract_a_sample_gets_a_float_and_a_list_a_list_of_floats(world: World) -> None:
    assert await one(Sample(response="0.5")) == 0.5
    assert await one([Sample(response="0.5"), Sample(response="1")]) == [0.5, 1.0]
    assert await one([]) == []
    assert await group(Sample(response="0.25"), Sample(response="1")) == [0.25, 1.0]
    assert world.scorer.asked[0]["reference"] == "4"
    assert world.scorer.asked[0]["prompt"] == "2 + 2?"


async def test_settings_come_from_the_arguments_if_they_are_there(world: World) -> None:
    await one(Sample())
    await one(Sample(), qreward_config={"reward_model": "rm"})
    assert world.asked == [(None, 100.0), ({"reward_model": "rm"}, 100.0)]


@pytest.mark.parametrize("settings", [{}, {"on_failure": "default"}, {"on_failure": "none"}])
async def test_a_failed_judge_never_becomes_0_unless_the_user_chose_it(world: World, settings: dict[str, Any]) -> None:
    world.set(judge={"model": "j"}, **settings)
    failed, good = Sample(response="what?"), Sample(response="1")
    assert await one(failed) == 0.5  # the middle of the judge's range: nothing else is known yet
    assert await one(good) == 1.0
    assert await one(again := Sample(response="what?")) == 1.0  # the mean of what was had
    assert [sample.remove_sample for sample in (failed, good, again)] == [True, False, True]
    world.set(on_failure=0.0)
    chosen = Sample(response="what?")
    assert await one(chosen) == 0.0
    assert not chosen.remove_sample
    world.set(on_failure="raise")
    with pytest.raises(RequestTimeout):
        await one(Sample(response="what?"))


async def test_in_a_group_a_failure_gets_the_mean_of_the_others_and_leaves_the_loss(world: World) -> None:
    samples = [Sample(response=text) for text in ("1", "what?", "0.5", None)]
    assert await group(*samples) == [1.0, 0.75, 0.5, 0.75]
    assert [sample.remove_sample for sample in samples] == [False, True, False, True]
    assert "no response" in samples[3].metadata["qreward"]["reason"]
    assert [each["response"] for each in world.scorer.asked] == ["1", "what?", "0.5"]
    assert await group(Sample(response="what?"), Sample(response="who?")) == [0.75, 0.75]  # without any deviation


async def test_how_a_sample_was_judged_is_noted_in_its_metadata(world: World) -> None:
    good, failed, strange = Sample(metadata={"a": 1}), Sample(response="what?"), Sample(metadata=None)
    await one([good, failed, strange])
    assert good.metadata["a"] == 1
    assert good.metadata["qreward"] | {"seconds": 0} == {
        "ok": True, "seconds": 0, "reason": "", "removed": False, "tokens": 7.0, "cost": 0.0, "unreported": 0.0,
    }  # fmt: skip
    said = failed.metadata["qreward"]
    assert (said["ok"], said["removed"], said["reason"]) == (False, True, "RequestTimeout: no answer in time")
    assert strange.metadata is None


async def test_with_a_reward_key_each_reward_is_a_dict_with_the_same_keys_of_which_one_may_be_an_attribute(world: World) -> None:
    good, failed = await one([Sample(response="0.5"), Sample(response="what?")], reward_key="judge", eval_reward_key="judge")
    assert good["judge"] == failed["judge"] == 0.5
    assert (good["judge_ok"], failed["judge_ok"]) == (1.0, 0.0)
    assert good.keys() == failed.keys() == {"judge", "judge_ok", "judge_seconds", "judge_tokens", "judge_cost", "judge_unreported"}
    world.scorer = FakeScorer(number_or_late, {"helpfulness": 3.5, "safety": 1.0})
    world.set()
    good, failed = await one([Sample(response="0.5"), Sample(response="what?")], reward_key="helpfulness")
    assert (good["helpfulness"], good["safety"]) == (3.5, 1.0)
    assert failed["helpfulness"] == 3.5


async def test_an_evaluation_finds_its_own_key_and_has_its_own_mean(world: World) -> None:
    await one(Sample(response="0.2"), eval_reward_key="score")
    assert await one(Sample(response="0.2"), eval_reward_key="score") == 0.2  # of training, which has no key
    assert (await one(Sample(response="1", group_index=None), eval_reward_key="score"))["score"] == 1.0
    failed = Sample(response="what?", group_index=None)
    found = await one(failed, eval_reward_key="score", reward_key="train")
    assert found["score"] == found["train"] == 1.0  # which moves the mean of the evaluation by nothing
    assert found["judge_ok"] == 0.0
    assert await one(Sample(response="what?", group_index=None)) == 1.0


async def test_a_fleet_that_is_dead_ends_the_run_and_not_only_its_samples(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slime, "MOST_LOST", 3)
    for _ in range(3):
        await one(Sample(response="what?"))
    with pytest.raises(RequestTimeout):
        await one(Sample(response="what?"))
    await one(Sample(response="1"))
    await one(Sample(response="what?"))


async def test_the_first_failure_and_then_one_of_a_hundred_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(101):
        await one(Sample(response="what?"))
    assert [record.getMessage() for record in caplog.records] == [
        f"{count} rewards are missing so far; the last: RequestTimeout: no answer in time" for count in (1, 101)
    ]


def test_the_middle_is_that_of_the_range_or_else_of_the_scale_and_a_reward_model_has_none() -> None:
    middles = [
        slime.middle(made.config)
        for made in (
            made_of(None, judge={"model": "j", "range": (-1, 1)}),
            made_of(None, judge={"model": "j", "range": None, "scale": (1, 5)}),
            made_of(None, reward_model="rm"),
        )
    ]
    assert middles == [0.0, 3.0, 0.0]


# normalized rewards


def normal_arguments(estimator: str = "grpo", **given: Any) -> SimpleNamespace:
    usual = {"rewards_normalization": True, "grpo_std_normalization": True, "n_samples_per_prompt": 2, "reward_key": None}
    return SimpleNamespace(**(usual | {"advantage_estimator": estimator} | given))


def sample(reward: float, group: int | None, *, removed: bool = False, metadata: Any = None) -> Any:
    metadata = metadata or ({"qreward": {"removed": True}} if removed else {})
    return SimpleNamespace(group_index=group, metadata=metadata, remove_sample=removed, get_reward_value=lambda args: reward)


def normalized(samples: list[Any], *args: Any, **given: Any) -> list[float]:
    raw, normal = slime.normalize_rewards(normal_arguments(*args, **given), samples)
    assert raw == [each.get_reward_value(None) for each in samples]
    return normal


def test_what_could_not_be_judged_changes_no_other_advantage_and_has_none() -> None:
    judged = [sample(1.0, 0), sample(0.0, 0), sample(0.5, 0)]
    alone = normalized(judged)
    for metadata in (None, '{"source": "math"}'):
        lost = sample(0.0, 0, removed=True, metadata=metadata)
        assert normalized([judged[0], lost, *judged[1:]]) == [alone[0], 0.0, *alone[1:]]
    filtered = sample(0.5, 0, removed=True, metadata={"qreward": {"removed": False}})
    assert normalized([*judged[:2], filtered]) == alone, "slime counts judged samples that its filter removed"
    assert normalized([sample(1.0, 0), sample(0.5, 0, removed=True), sample(0.5, 1, removed=True)]) == [0.0, 0.0, 0.0]


def test_groups_are_those_of_an_index_or_so_many_in_a_row_and_are_scaled_as_slime_does() -> None:
    half = math.sqrt(0.5)
    mixed = [sample(1.0, 0), sample(10.0, 1), sample(0.0, 0), sample(30.0, 1)]
    assert normalized(mixed) == pytest.approx([half, -half, -half, half], rel=1e-5)
    in_a_row = [sample(reward, None) for reward in (1.0, 0.0, 5.0, 5.0)]
    assert normalized(in_a_row, grpo_std_normalization=False) == [0.5, -0.5, 0.0, 0.0]
    pair = [sample(1.0, 0), sample(0.0, 0)]
    found = {
        "ppo": normalized(pair, "ppo"),
        "off": normalized(pair, rewards_normalization=False),
        "baseline": normalized(pair, "reinforce_plus_plus_baseline"),
        "gspo": normalized(pair, "gspo", grpo_std_normalization=False),
    }
    assert found == {"ppo": [1.0, 0.0], "off": [1.0, 0.0], "baseline": [0.5, -0.5], "gspo": [0.5, -0.5]}


@given(st.lists(st.lists(st.floats(-10, 10), min_size=2, max_size=8), min_size=1, max_size=5))
def test_with_all_judged_it_is_the_mean_and_the_sample_deviation_of_each_group(groups: list[list[float]]) -> None:
    samples = [sample(reward, index) for index, rewards in enumerate(groups) for reward in rewards]
    expected = [(reward - fmean(rewards)) / (stdev(rewards) + 1e-6) for rewards in groups for reward in rewards]
    assert normalized(samples) == pytest.approx(expected, rel=1e-6, abs=1e-6)
