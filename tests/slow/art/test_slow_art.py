"""ART's real trajectories and its real gathering of groups over a fleet of which a tenth goes wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import art
import pytest
from openai.types.chat.chat_completion import Choice
from slow_tools import peaks, went_wrong
from trainers_tools import NOISE, settings_of

from qreward.errors import QRewardError
from qreward.integrations.art import score_group
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet, Faults, Latency

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
EXAMPLE = Path(__file__).parents[3] / "examples" / "trainers" / "art_groups.py"


async def rollout(at: int, wrong: int) -> art.Trajectory:
    """An answer of the model is a ``Choice``, as ART keeps one to train on."""
    message = {"role": "assistant", "content": str(2 * at + wrong)}
    choice = Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message})
    question = {"role": "user", "content": f"{at} + {at}?"}
    return art.Trajectory(messages_and_choices=[question, choice], metadata={"answer": str(2 * at), "wrong": wrong}, reward=0.5)


def gathered(count: int, size: int = 4, **options: Any) -> list[Any]:
    groups = (art.TrajectoryGroup(rollout(at, wrong) for wrong in range(size)) for at in range(count))
    return list(asyncio.run(art.gather_trajectory_groups(groups, after_each=score_group, pbar_desc=None, **options)))


def test_groups_at_once_have_the_right_rewards_and_the_metrics_of_ruler(fleet: FakeFleet, settings: Path) -> None:
    groups = gathered(16)
    print(f"in flight {peaks(fleet)}, {went_wrong(fleet)} went wrong")
    assert len(groups) == 16
    for group in groups:
        assert isinstance(group, art.TrajectoryGroup)
        assert {each.metadata["wrong"]: each.reward for each in group} == {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}
        assert {each.metrics["independent_reward"] for each in group} == {0.5}
        assert all(each.logs[0].startswith("judge: ") and isinstance(each.messages_and_choices[1], Choice) for each in group)
        assert group.exceptions == []
    assert went_wrong(fleet) > 0
    assert sum(peaks(fleet)) >= 48


def test_a_failure_drops_its_trajectory_or_its_group_and_is_no_reward(fleet: FakeFleet, settings: Path, tmp_path: Path) -> None:
    for name in fleet.names:
        fleet.set(name, faults=Faults(error_500=1.0), latency=Latency())
    settings_of(fleet, tmp_path, deadline=1.0)
    assert gathered(2) == []
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0, on_failure="raise")
    with pytest.raises(QRewardError):
        gathered(2)


def test_the_example_runs_and_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-X", "dev", str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=200)
    rewarded = "[0.0, 1.0, 1.0], 0 without a reward"
    assert (done.returncode, done.stdout) == (0, f" 4: {rewarded}\n12: [1.0, 1.0], 1 without a reward\n20: {rewarded}\n"), done.stderr
    ours = "".join(line for line in done.stderr.splitlines() if "qreward" in line)
    assert not NOISE.search(ours), done.stderr
