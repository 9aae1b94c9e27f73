"""AReaL's real reward wrapper and workflow over a fleet of which a tenth goes wrong: its process pool, its deadline, and its own loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelResponse
from areal.api.reward_api import AsyncRewardWrapper
from areal.infra.async_task_runner import AsyncTaskRunner
from areal.infra.remote_inf_engine import GroupedRolloutWorkflow
from areal.utils import logging
from areal.utils.dynamic_import import import_from_string
from slow_tools import byte_tokenizer, narrow_and_wide, peaks
from trainers_tools import settings_of

from qreward.errors import QRewardError
from qreward.integrations.areal import NoReward
from qreward.integrations.areal.workflow import QRewardRLVRWorkflow
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet, Faults, Latency

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
REWARD = "qreward.integrations.areal.reward"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with narrow_and_wide(0.2, process=True) as made:  # in a process of its own, for AReaL forks this one
        yield made


@pytest.fixture
def settings(fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = settings_of(fleet, tmp_path, deadline=10.0)
    monkeypatch.setenv("QREWARD_REWARD", str(file))
    yield file
    AsyncRewardWrapper._atexit_shutdown_all()  # its children have read these settings
    close_all()


def failing(fleet: FakeFleet, **faults: float) -> None:
    for name in fleet.names:
        fleet.set(name, faults=Faults(**faults), latency=Latency())


def requests(fleet: FakeFleet) -> int:
    return sum(fleet.seen(name).requests for name in fleet.names)


def call(at: int) -> tuple[Any, ...]:
    return f"{at} + {at}?", f"{2 * at + at % 2}<|im_end|>", [1, 2], [3]


def test_the_wrapper_gets_right_rewards_from_children_and_never_its_own_zero(fleet: FakeFleet, settings: Path) -> None:
    async def main() -> list[float]:
        wrapper = AsyncRewardWrapper(import_from_string(REWARD), max_workers=2)
        return list(await asyncio.gather(*(wrapper(*call(at), answer=str(2 * at)) for at in range(40))))

    begun = time.monotonic()
    found = asyncio.run(main())
    print(f"wrapper: 40 in {time.monotonic() - begun:.1f} s with 2 children, {requests(fleet)} requests")
    assert found == [float(at % 2 == 0) for at in range(40)]


def test_a_failure_is_an_error_after_areals_four_tries_and_no_zero(fleet: FakeFleet, settings: Path, tmp_path: Path) -> None:
    failing(fleet, hang=1.0)
    settings_of(fleet, tmp_path, deadline=1.0)
    wrapper = AsyncRewardWrapper(import_from_string(REWARD))
    begun = time.monotonic()
    with pytest.raises(NoReward):
        asyncio.run(wrapper(*call(2), answer="4"))
    assert time.monotonic() - begun >= 4 * 1.0


class Engine:
    """Answers ``a + b?`` rightly, or for an odd ``a`` wrongly, with AReaL's own response."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def agenerate(self, req: Any) -> ModelResponse:
        await asyncio.sleep(0)
        first, _, second = self.tokenizer.decode(req.input_ids).split("user\n")[1].split("?")[0].partition(" + ")
        tokens = self.tokenizer(f"{int(first) + int(second) + int(first) % 2}<|im_end|>")["input_ids"]
        return ModelResponse(list(req.input_ids), tokens, [0.0] * len(tokens), [0] * len(tokens), tokenizer=self.tokenizer)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = byte_tokenizer()
    made.chat_template = TEMPLATE
    return made


def row(at: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{at} + {at}?"}], "answer": str(2 * at)}


def workflow(tokenizer: Any) -> QRewardRLVRWorkflow:
    return QRewardRLVRWorkflow(gconfig=GenerationHyperparameters(max_new_tokens=16), tokenizer=tokenizer)


def test_the_workflow_awaits_all_rewards_at_once_in_areals_own_loop(fleet: FakeFleet, settings: Path, tokenizer: Any) -> None:
    for name in fleet.names:
        fleet.set(name, latency=Latency(base=1.0))
    made, engine, runner = workflow(tokenizer), Engine(tokenizer), AsyncTaskRunner(max_queue_size=128)
    runner.initialize()
    begun = time.monotonic()
    try:
        for at in range(64):
            runner.submit(made.arun_episode, engine, row(at), task_id=at)
        found = sorted(runner.wait(64, timeout=120, with_timing=True), key=lambda each: each.task_id)
    finally:
        runner.destroy()
    print(f"workflow: 64 in {time.monotonic() - begun:.1f} s, in flight {peaks(fleet)}")
    assert [each.data["rewards"].item() for each in found] == [float(at % 2 == 0) for at in range(64)]
    assert sum(peaks(fleet)) >= 48
    assert AsyncRewardWrapper._executors == {}


def test_a_failure_rejects_the_group_and_none_leaves_the_trajectory_out(
    fleet: FakeFleet, settings: Path, tokenizer: Any, tmp_path: Path
) -> None:
    failing(fleet, error_500=1.0)
    settings_of(fleet, tmp_path, deadline=1.0)
    grouped = GroupedRolloutWorkflow(workflow(tokenizer), 4, logging.getLogger("test"))
    with pytest.raises(QRewardError):
        asyncio.run(grouped.arun_episode(Engine(tokenizer), row(2)))
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0, on_failure="none")
    assert asyncio.run(grouped.arun_episode(Engine(tokenizer), row(2))) is None
