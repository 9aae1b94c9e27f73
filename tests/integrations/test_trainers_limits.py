"""A limit of an endpoint holds over the threads and the event loops in which the trainers call their adapters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import test_openenv_contract
import test_skyrl_contract
from test_art_contract import TrajectoryGroup, trajectory
from test_ms_swift_contract import conversation
from test_tinker_cookbook_contract import Env, Group
from test_tinker_cookbook_contract import trajectory as rollout
from trainers_tools import fleet_of, settings_of

from qreward.integrations.art import score_group
from qreward.integrations.ms_swift import QRewardORM
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet, Latency

pytestmark = pytest.mark.real_time
openenv, skyrl = test_openenv_contract.adapter, test_skyrl_contract.adapter  # fixtures
LIMIT, CALLS = 3, 12


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFleet]:
    with fleet_of(latency=Latency(base=0.02)) as made:
        settings = json.loads(settings_of(made, tmp_path).read_text())
        settings["client"]["endpoints"][0]["limits"]["max_concurrency"] = LIMIT
        file = tmp_path / "limited.json"
        file.write_text(json.dumps(settings))
        monkeypatch.setenv("QREWARD_REWARD", str(file))
        yield made
        close_all()


def test_a_limit_holds_over_threads_and_over_loops_that_come_and_go(openenv: Any, skyrl: Any, fleet: FakeFleet) -> None:
    function, group, rubric = QRewardORM(), Group(), openenv.QRewardRubric()

    def of_ms_swift(at: int) -> Any:
        return asyncio.run(function([str(2 * at)], messages=[conversation(at, str(2 * at))], solution=[str(2 * at)]))[0]

    def of_tinker_cookbook(at: int) -> Any:
        return asyncio.run(group.compute_group_rewards([rollout(str(2 * at))], [Env(at)]))[0][0]

    def of_skyrl(at: int) -> Any:
        return test_skyrl_contract.episode(skyrl.QRewardEnv, "4", {"reward_spec": {"ground_truth": "4"}, "at": at})[0]

    def of_openenv(at: int) -> Any:
        return rubric(test_openenv_contract.Action(message=f"answer {at}"), {"prompt": f"{at}?", "answer": f"answer {at}"})

    def of_art(at: int) -> Any:
        scored = asyncio.run(score_group(TrajectoryGroup([trajectory(str(at), metadata={"answer": str(at)})])))
        return scored.trajectories[0].reward

    ways: list[Callable[[int], Any]] = [of_ms_swift, of_tinker_cookbook, of_skyrl, of_openenv, of_art]
    with ThreadPoolExecutor(CALLS * len(ways)) as pool:
        found = [list(each) for each in [pool.map(way, range(1, CALLS + 1)) for way in ways]]
    wrong = {way.__name__: each for way, each in zip(ways, found, strict=True) if each != [1.0] * CALLS}
    assert wrong == {}
    assert fleet.seen("judge-0").peak_in_flight == LIMIT
