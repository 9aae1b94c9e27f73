"""AReaL's real reward wrapper and workflow over a fleet of which a tenth goes wrong: its process pool, its deadline, and its own loop."""

from __future__ import annotations

import asyncio
import random
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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from trainers_tools import settings_of
from transformers import PreTrainedTokenizerFast

from qreward.errors import QRewardError
from qreward.integrations.areal import DEADLINE, NoReward
from qreward.integrations.areal.workflow import QRewardRLVRWorkflow
from qreward.integrations.trainers.rewarder import LATE, close_all
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
REWARD = "qreward.integrations.areal.reward"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    """In a process of its own, for AReaL forks this one. One judge rejects what is more than 8 at once; a tenth fails or hangs."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    faults, slow = {"error_500": 0.05, "hang": 0.05}, Latency(base=0.2)
    endpoints = [
        FakeEndpoint("narrow", responder="judge", latency=slow, max_concurrency=8, faults=Faults(**faults, seed=seed)),
        FakeEndpoint("wide", responder="judge", latency=slow, faults=Faults(**faults, seed=seed + 1)),
    ]
    with FakeFleet(endpoints, process=True) as made:
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


def test_the_functions_own_deadline_comes_before_areals(fleet: FakeFleet, settings: Path, tmp_path: Path) -> None:
    failing(fleet, hang=1.0)
    settings_of(fleet, tmp_path, attempt=60.0, deadline=None)
    wrapper = AsyncRewardWrapper(import_from_string(REWARD), max_retries=0)  # with AReaL's own 15 seconds
    begun = time.monotonic()
    with pytest.raises(NoReward):
        asyncio.run(wrapper(*call(2), answer="4"))
    seconds = time.monotonic() - begun
    print(f"given up after {seconds:.1f} s")
    assert DEADLINE <= seconds < 15.0
    assert DEADLINE + LATE < 15.0


def test_a_number_that_was_chosen_is_the_reward_at_the_first_try(fleet: FakeFleet, settings: Path, tmp_path: Path) -> None:
    failing(fleet, error_500=1.0)
    settings_of(fleet, tmp_path, deadline=1.0, on_failure=-1.0)
    assert asyncio.run(AsyncRewardWrapper(import_from_string(REWARD))(*call(2), answer="4")) == -1.0


class Engine:
    """Answers ``a + b?`` rightly, or for an odd ``a`` wrongly, with AReaL's own response."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer

    async def agenerate(self, req: Any) -> ModelResponse:
        await asyncio.sleep(0)
        first, _, second = self.tokenizer.decode(req.input_ids).split("user\n")[1].split("?")[0].partition(" + ")
        tokens = self.tokenizer(f"{int(first) + int(second) + int(first) % 2}<|im_end|>")["input_ids"]
        return ModelResponse(list(req.input_ids), tokens, [0.0] * len(tokens), [0] * len(tokens), tokenizer=self.tokenizer)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    special = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    made = PreTrainedTokenizerFast(tokenizer_object=raw, **special)
    made.chat_template = TEMPLATE
    return made


def row(at: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{at} + {at}?"}], "answer": str(2 * at)}


def workflow(tokenizer: PreTrainedTokenizerFast) -> QRewardRLVRWorkflow:
    return QRewardRLVRWorkflow(gconfig=GenerationHyperparameters(max_new_tokens=16), tokenizer=tokenizer)


def test_the_workflow_awaits_all_rewards_at_once_in_areals_own_loop(
    fleet: FakeFleet, settings: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
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
    peaks = [fleet.seen(name).peak_in_flight for name in fleet.names]
    print(f"workflow: 64 in {time.monotonic() - begun:.1f} s, in flight {peaks}")
    assert [each.data["rewards"].item() for each in found] == [float(at % 2 == 0) for at in range(64)]
    assert sum(peaks) >= 48
    assert AsyncRewardWrapper._executors == {}


def test_a_failure_rejects_the_group_and_none_leaves_the_trajectory_out(
    fleet: FakeFleet, settings: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    failing(fleet, error_500=1.0)
    settings_of(fleet, tmp_path, deadline=1.0)
    grouped = GroupedRolloutWorkflow(workflow(tokenizer), 4, logging.getLogger("test"))
    with pytest.raises(QRewardError):
        asyncio.run(grouped.arun_episode(Engine(tokenizer), row(2)))
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0, on_failure="none")
    assert asyncio.run(grouped.arun_episode(Engine(tokenizer), row(2))) is None
