"""Groups as rewards in the adapters that get groups from their trainers: ms-swift, tinker-cookbook and ART; the others refuse them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_openenv_contract
import test_skyrl_contract
from adapter_fakes import REWARDER, configured, installed
from test_art_contract import Trajectory, TrajectoryGroup, rewards, trajectory
from test_ms_swift_contract import batch
from test_tinker_cookbook_contract import rewards as rewards_of_group
from test_trainers_ranking import RankingScorer

from qreward.errors import BadRequest, ConfigError, RequestTimeout
from qreward.integrations.art import score_group
from qreward.integrations.ms_swift import QRewardORM
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeEndpoint, FakeFleet

pytestmark = pytest.mark.real_time
openenv, skyrl = test_openenv_contract.adapter, test_skyrl_contract.adapter  # fixtures
ASSISTANT, USER, TOOL = "assistant", "user", "tool"


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RankingScorer:
    made = RankingScorer()
    installed(monkeypatch)
    monkeypatch.setattr(REWARDER, "make_scorer", lambda client, who, **_: made)
    configured(monkeypatch, tmp_path, rank="scores")
    return made


def test_ms_swift_ranks_the_completions_of_a_prompt_and_refuses_a_part_of_them(scorer: RankingScorer) -> None:
    whole = [[{"role": USER, "content": "p"}, {"role": ASSISTANT, "content": each}] for each in ("0.2", "0.9")]
    function = QRewardORM(args=SimpleNamespace(num_generations=2))
    assert asyncio.run(function(["0.2", "0.9"], messages=whole, solution=["4", "4"])) == [0.2, 0.9]
    with pytest.raises(ConfigError, match=r"has 1 of 2; set per_device_train_batch_size to a multiple of num_generations"):
        batch([function], ["0.2", "0.9"])  # of two prompts
    assert [(each["responses"], each["reference"]) for each in scorer.ranked] == [(["0.2", "0.9"], "4")]


def test_tinker_cookbook_ranks_a_group_and_fails_it_with_its_ranking(scorer: RankingScorer) -> None:
    assert rewards_of_group(["0.2", "0.9"]) == [0.2, 0.9]
    with pytest.raises(RequestTimeout):
        rewards_of_group(["0.2", "late"])
    with pytest.raises(BadRequest, match="cannot be ranked alone"):
        rewards_of_group(["0.2"])


def test_art_ranks_a_group_by_what_follows_the_common_beginning_and_drops_it_with_its_ranking(scorer: RankingScorer) -> None:
    assert rewards(asyncio.run(score_group(TrajectoryGroup([trajectory("0.2"), trajectory("0.9")])))) == [0.2, 0.9]
    for answers in (["0.2", "late"], ["0.2"], []):
        assert asyncio.run(score_group(TrajectoryGroup([trajectory(each) for each in answers]))) is None
    assert [each["responses"] for each in scorer.ranked] == [["0.2", "0.9"], ["0.2", "late"]]
    assert scorer.ranked[0]["prompt"] == [{"role": USER, "content": "2 + 2?"}]


def test_art_compares_trajectories_of_several_turns_with_a_real_judge() -> None:
    def turns(*contents: str) -> Trajectory:
        roles = (USER, ASSISTANT, TOOL, ASSISTANT)
        return Trajectory(messages_and_choices=[{"role": role, "content": each} for role, each in zip(roles, contents, strict=False)])

    with FakeFleet([FakeEndpoint("gpu-0", kind="vllm", decisions=True)]) as fleet:
        client = {"endpoints": [{"base_url": fleet.urls["gpu-0"], "kind": "vllm"}]}
        settings = {"client": client, "judge": {"model": "judge-7b", "method": "decide"}, "rank": "scores", "deadline": 20}
        group = [turns("2 + 2?", "a sum", "4", "It is 4. truth=0.9"), turns("2 + 2?", "4 truth=0.5"), turns("2 + 2?", "5 truth=0.1")]
        found = asyncio.run(score_group(TrajectoryGroup(group), settings))
    close_all()
    first, second, third = rewards(found)
    assert first > second > third


def test_a_trainer_whose_samples_come_one_by_one_refuses_to_rank(openenv: Any, skyrl: Any, scorer: RankingScorer) -> None:
    for made, trainer in ((openenv.QRewardRubric, "openenv"), (skyrl.QRewardEnv, "skyrl")):
        with pytest.raises(ConfigError, match=f"rank: scores is not possible with {trainer}"):
            made()
