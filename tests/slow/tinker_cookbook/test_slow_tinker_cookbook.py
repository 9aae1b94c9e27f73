"""tinker-cookbook's real rollouts of groups over a fleet of which a tenth goes wrong, in one loop and in those of an executor."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from slow_tools import peaks, went_wrong
from trainers_tools import NOISE, settings_of

from qreward.errors import QRewardError
from qreward.integrations.tinker_cookbook import QRewardGroup
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet, Faults, Latency

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework warns of is not ours
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
    from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
    from tinker_cookbook.rl.rollouts import do_group_rollout

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
EXAMPLE = Path(__file__).parents[3] / "examples" / "trainers" / "tinker_group.py"


class Bytes:
    """A tokenizer whose tokens are bytes."""

    bos_token, eos_token_id, name_or_path = None, None, "bytes"

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Any, **_: Any) -> str:
        return bytes(tokens).decode()


class Sum(ProblemEnv):  # type: ignore[misc]
    def __init__(self, at: int) -> None:
        super().__init__(get_renderer("role_colon", Bytes()), format_coef=0.0)
        self.at = at

    def get_question(self) -> str:
        return f"{self.at} + {self.at}?"

    def get_reference_answer(self) -> str:
        return str(2 * self.at)

    def check_format(self, sample_str: str) -> bool:
        return True

    def check_answer(self, sample_str: str) -> bool:
        return False


@dataclass(frozen=True)
class Group(QRewardGroup, ProblemGroupBuilder):  # type: ignore[misc]
    """As in the documentation, and a dataclass."""


def group(at: int, size: int = 8) -> Any:
    return Group(env_thunk=partial(Sum, at), num_envs=size)


class Policy(TokenCompleter):  # type: ignore[misc]
    """Every second answer is wrong."""

    def __init__(self, at: int) -> None:
        self._at, self._asked = at, 0

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
        self._asked += 1
        tokens = list(f" {2 * self._at + self._asked % 2}\n\nUser:".encode())
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens), stop_reason="stop")


def rolled_out(at: int, **options: Any) -> list[float]:
    """The rewards of a group, in a loop of its own, as an executor's worker has one."""
    return list(asyncio.run(do_group_rollout(group(at), Policy(at), **options)).get_total_rewards())


def test_groups_at_once_have_the_right_rewards_in_one_loop_and_in_those_of_an_executor(fleet: FakeFleet, settings: Path) -> None:
    async def together() -> list[Any]:
        return list(await asyncio.gather(*(do_group_rollout(group(at), Policy(at)) for at in range(8))))

    found = asyncio.run(together())
    assert [each.get_total_rewards() for each in found] == [[0.0, 1.0] * 4] * 8
    assert all(metrics["judge_ok"] == 1.0 for each in found for metrics in each.metrics_G)
    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(rolled_out, range(8, 16))) == [[0.0, 1.0] * 4] * 8
    print(f"in flight {peaks(fleet)}, {went_wrong(fleet)} went wrong")
    assert went_wrong(fleet) > 0


def test_a_failure_fails_its_group_and_a_grader_that_is_cut_off_is_no_reward(fleet: FakeFleet, settings: Path, tmp_path: Path) -> None:
    for name in fleet.names:
        fleet.set(name, faults=Faults(error_500=1.0), latency=Latency())
    settings_of(fleet, tmp_path, deadline=1.0)
    for options in ({}, {"strategy": RetryOnFailure()}):
        with pytest.raises(QRewardError):
            rolled_out(2, **options)
    assert RetryOnFailure().catches_group_errors  # by which the trainer skips the group
    with pytest.raises(TimeoutError):
        rolled_out(2, termination=TerminationRewardPolicy(grader_timeout_seconds=0.2))
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0, on_failure=-1.0)
    assert rolled_out(2) == [-1.0] * 8


def test_the_example_runs_and_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-X", "dev", str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stdout) == (0, "[1.0, 0.0, 1.0, 0.0]\nno judge answers: no reward\n"), done.stderr
    assert not NOISE.search(done.stderr), done.stderr
