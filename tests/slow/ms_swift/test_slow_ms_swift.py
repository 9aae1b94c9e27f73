"""ms-swift's real registry, plugins and computation of rewards over a fleet of which a tenth goes wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_tools import peaks, went_wrong
from swift.rewards import orms
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import compute_rewards_per_func, compute_std_for_dynamic_sampling
from swift.utils.utils import import_external_file
from trainers_tools import NOISE, settings_of

from qreward.errors import QRewardError
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet, Faults, Latency

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
EXAMPLE = Path(__file__).parents[3] / "examples" / "trainers" / "ms_swift_plugin.py"


@pytest.fixture
def function(fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As ``--external_plugins`` and ``--reward_funcs qreward`` make it."""
    monkeypatch.setenv("QREWARD_REWARD", str(settings_of(fleet, tmp_path)))
    import_external_file(str(EXAMPLE))
    yield orms["qreward"](args=None)
    close_all()


def samples(count: int) -> list[Any]:
    """Each second answer is wrong."""
    rows = [(f"{at} + {at}?", str(2 * at + at % 2), str(2 * at)) for at in range(count)]
    return [
        GRPOSample.from_row(
            {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": said}], "solution": solution}
        )
        for question, said, solution in rows
    ]


def rewards(functions: list[Any], count: int) -> Any:
    """The rewards of that many samples, by function; as ``GRPOTrainer`` computes them."""
    return compute_rewards_per_func(samples(count), functions, [None] * len(functions), device=torch.device("cpu"))


def test_batches_are_right_at_once_and_a_synchronous_function_stands_beside_ours(fleet: FakeFleet, function: Any) -> None:
    def short(completions: list[str], **columns: Any) -> list[float]:
        return [float(len(each) < 3) for each in completions]

    for _ in range(3):  # each in a loop of its own
        begun = time.monotonic()
        found = rewards([function, short], 64)
        assert found[:, 0].tolist() == [float(at % 2 == 0) for at in range(64)]
        print(f"64 in {time.monotonic() - begun:.1f} s, in flight {peaks(fleet)}, {went_wrong(fleet)} went wrong")
    assert went_wrong(fleet) > 0
    assert sum(peaks(fleet)) >= 48


def test_a_failure_ends_the_step_for_ms_swift_would_count_none_as_zero(fleet: FakeFleet, function: Any, tmp_path: Path) -> None:
    for name in fleet.names:
        fleet.set(name, faults=Faults(error_500=1.0), latency=Latency())
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0)
    with pytest.raises(QRewardError):
        rewards([function], 4)
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0, on_failure=-1.0)
    assert rewards([function], 2).tolist() == [[-1.0], [-1.0]]
    missing = rewards([lambda completions, **columns: [None, 1.0]], 2)
    spread = compute_std_for_dynamic_sampling(missing, torch.ones(1), 2)
    assert spread.tolist() == pytest.approx([0.5**0.5] * 2, rel=1e-5)  # that of 0 and 1


def test_the_example_runs_and_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-X", "dev", str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[1.0, 0.0, 1.0]"), done.stderr
    assert "qreward" not in "".join(line for line in done.stderr.splitlines() if NOISE.search(line))
