"""The judge of ROLL's environments: called from plain code in many threads; a failure is ROLL's invalid reward, and can be filtered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import FakeScorer, made_of, number_or_late

from qreward.errors import RequestTimeout
from qreward.integrations.roll import INVALID, InvalidGroupFilter, RewardUnavailable, judge
from qreward.integrations.roll.rewards import MOST_DROPPED
from qreward.integrations.trainers import adapter


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    """Who judges in :func:`judge`; ``settings`` there are on_failure."""
    made = FakeScorer(number_or_late)
    monkeypatch.setattr(adapter, "rewarder", lambda settings, deadline: made_of(made, deadline, **(settings or {})))
    return made


def test_it_judges_from_as_many_threads_as_there_are_environments(scorer: FakeScorer) -> None:
    with ThreadPoolExecutor(16) as threads:
        scores = list(threads.map(lambda at: judge("sum?", str(at), reference=str(at), rubric="x"), range(64)))
    assert scores == list(range(64))
    assert {(each["reference"], each["rubric"]) for each in scorer.asked} == {(str(at), "x") for at in range(64)}


def test_a_failed_judge_never_becomes_0_unless_the_user_chose_it(scorer: FakeScorer) -> None:
    assert judge("sum?", "what?") == INVALID == -999.0
    assert judge("sum?", "what?", settings={"on_failure": "none"}) == INVALID
    assert judge("sum?", "what?", settings={"on_failure": 0}) == 0.0
    with pytest.raises(RequestTimeout):
        judge("sum?", "what?", settings={"on_failure": "raise"})


def rollout(**columns: Any) -> SimpleNamespace:
    return SimpleNamespace(non_tensor_batch=columns)


def test_contract_a_group_filter_is_made_and_asked_as_roll_does() -> None:
    made = InvalidGroupFilter(SimpleNamespace(), SimpleNamespace(), "train")
    good = rollout(episode_scores=[0.5], step_scores=[[0.25, 0.25]])
    assert made.filter(group_id=1, episode_id=2, group=[good, None]) is False
    assert made.filter(group_id=1, episode_id=2, group=[good, rollout(episode_scores=[INVALID + 0.7])]) is True
    assert made.filter(group_id=1, episode_id=2, group=[rollout(episode_scores=[0.0], step_scores=[[1.0], [INVALID]])]) is True


def test_a_dead_fleet_ends_the_run_and_not_only_its_groups() -> None:
    made = InvalidGroupFilter(None, None, "train")
    bad, good = [rollout(episode_scores=[INVALID])], [rollout(episode_scores=[1.0])]
    for _ in range(MOST_DROPPED - 1):
        assert made.filter(0, 0, bad)
    assert not made.filter(0, 0, good)
    for _ in range(MOST_DROPPED - 1):
        assert made.filter(0, 0, bad)
    with pytest.raises(RewardUnavailable, match=f"{MOST_DROPPED} groups in a row"):
        made.filter(7, 0, bad)
