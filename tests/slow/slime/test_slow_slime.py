"""slime's own contract harness, its reward hub and its samples, with our functions, on a fleet in which a tenth of calls goes wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qreward.testing import FakeEndpoint, FakeFleet
from qreward.testing.responders import judge

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]  # what torch and transformers warn of is not ours
Settings = Callable[..., Path]
FUNCTIONS = "qreward.integrations.slime"


def arguments(function: str = "reward", **given: Any) -> Any:
    """slime's arguments, in what its reward hub reads."""
    usual = {"custom_rm_path": f"{FUNCTIONS}.{function}", "rm_type": None, "reward_key": None, "eval_reward_key": None}
    return SimpleNamespace(**(usual | {"group_rm": function == "group_reward"} | given))


@pytest.fixture(scope="session")
def run(source: str) -> Any:
    """Runs a coroutine in slime's loop, as its rollout does: one thread, one loop, for the whole run."""
    from slime.utils import async_utils

    return async_utils.run


def samples(count: int, group_size: int = 8, **given: Any) -> list[Any]:
    """Of slime's own kind; each second answer is wrong."""
    from slime.utils.types import Sample

    status = Sample.Status.COMPLETED
    return [
        Sample(
            index=at, group_index=at // group_size, prompt=f"number {at}", response=str(at), label=str(at - at % 2), status=status, **given
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("more", [("reward",), ("group_reward", "--group-rm")])
def test_slimes_contract_harness_takes_our_functions(more: tuple[str, ...], source: str, settings: Settings, steady: FakeFleet) -> None:
    settings(steady)
    harness = Path(source) / "tests" / "plugin_contracts" / "test_plugin_path_loading_contracts.py"
    command = [sys.executable, str(harness), "--custom-rm-path", f"{FUNCTIONS}.{more[0]}", *more[1:]]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=source,
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
    assert "Unclosed" not in done.stdout + done.stderr
    assert steady.seen("steady").answered >= 1


def test_64_samples_at_once_are_right_though_a_tenth_of_calls_fails(run: Any, settings: Settings, troubled: FakeFleet) -> None:
    from slime.rollout.rm_hub import async_rm

    settings(troubled, deadline=60)

    async def all_at_once(given: list[Any]) -> list[float]:
        return await asyncio.gather(*(async_rm(arguments(), sample) for sample in given))

    for _ in range(4):  # rollouts
        batch = samples(64)
        assert run(all_at_once(batch)) == [1.0 - at % 2 for at in range(64)]
        assert not any(sample.remove_sample for sample in batch)
    seen = {name: troubled.seen(name) for name in troubled.names}
    assert seen["breaks"].errors["error_500"] > 0
    assert seen["hangs"].errors["hang"] > 0
    assert seen["limits"].rejected > 0


def poisoned(messages: list[Any]) -> str:
    """Judges all answers but those to numbers that end in 3, at which it breaks."""
    if "3\n```\n\nReference" in messages[-1]["content"]:
        raise RuntimeError
    return judge(messages)


def test_a_group_through_slimes_hub_gets_the_mean_of_its_judged_for_a_failure(run: Any, settings: Settings) -> None:
    from slime.rollout.rm_hub import batched_async_rm

    with FakeFleet([FakeEndpoint("poisoned", responder=poisoned)]) as fleet:
        settings(fleet, deadline=2)
        batch = samples(6)
        rewards = run(batched_async_rm(arguments("group_reward"), batch))
    assert rewards == [1.0, 0.0, 1.0, 0.6, 1.0, 0.0]
    assert [sample.remove_sample for sample in batch] == [at == 3 for at in range(6)]


def test_normalised_rewards_are_slimes_where_all_were_judged() -> None:
    from slime.rollout._fanout_test_helpers import grpo_normalize_by_group_index

    from qreward.integrations.slime import normalize_rewards

    args = arguments(advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True, n_samples_per_prompt=8)
    batch = samples(32)
    for at, sample in enumerate(batch):
        sample.reward = at * at % 7 / 7
    raw, normal = normalize_rewards(args, batch)
    theirs = grpo_normalize_by_group_index(args, batch)
    assert raw == theirs[0]
    assert normal == pytest.approx(theirs[1], abs=1e-5)
