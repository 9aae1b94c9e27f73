"""OpenRLHF's real executors over a fleet of which a tenth goes wrong: all samples are rewarded, and only threads bound the function."""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.agent import AgentExecutorBase, SingleTurnAgentExecutor
from slow_tools import byte_tokenizer, peaks, went_wrong

from qreward.integrations import openrlhf
from qreward.testing import FakeFleet

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
SAMPLES = 64
THREADS = min(32, (os.cpu_count() or 1) + 4)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


class Engine:
    """Answers ``a + b?`` rightly, or for an odd ``a`` wrongly."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        await asyncio.sleep(0)
        first, _, second = self.tokenizer.decode(prompt_token_ids).split("user\n")[1].split("?")[0].partition(" + ")
        tokens = self.tokenizer(f"{int(first) + int(second) + int(first) % 2}<|im_end|>")["input_ids"]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, finish_reason="stop", logprobs=None)])


def agent() -> Any:
    """As ``openrlhf/trainer/ray/vllm_engine.py`` loads it."""
    spec = importlib.util.spec_from_file_location("agent_module", openrlhf.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert issubclass(module.AgentExecutor, AgentExecutorBase)
    return module.AgentExecutor()


async def executed(executor: Any, tokenizer: Any, samples: int = SAMPLES) -> list[dict[str, Any]]:
    params = SimpleNamespace(max_tokens=16, logprobs=None)
    prompts = [f"<|im_start|>user\n{at} + {at}?<|im_end|>\n<|im_start|>assistant\n" for at in range(samples)]
    calls = [
        executor.execute(prompt, str(2 * at), params, 512, tokenizer, Engine(tokenizer)) for at, prompt in enumerate(prompts)
    ]  # fmt: skip
    return list(await asyncio.gather(*calls))


@pytest.mark.parametrize("way", ["function", "executor"])
def test_all_samples_are_rewarded_and_threads_bound_the_function_alone(way: str, fleet: FakeFleet, settings: Path, tokenizer: Any) -> None:
    executor = agent() if way == "executor" else SingleTurnAgentExecutor(openrlhf.__file__)
    begun = time.monotonic()
    outputs = asyncio.run(executed(executor, tokenizer))
    print(f"{way}: {time.monotonic() - begun:.2f} s, in flight {peaks(fleet)}, {went_wrong(fleet)} went wrong, {THREADS} threads")

    assert [output["reward"] for output in outputs] == [float(at % 2 == 0) for at in range(SAMPLES)]
    assert all(type(output["reward"]) is float and output["scores"] == output["reward"] for output in outputs)
    assert {tuple(output["extra_logs"])[:2] for output in outputs} == {("judge_ok", "judge_seconds")}
    assert went_wrong(fleet) > 0
    if way == "function":
        assert sum(peaks(fleet)) <= THREADS + 4  # hedges of a few are sent beside them
    else:
        assert sum(peaks(fleet)) >= 48


# what OpenRLHF makes of a failure for which no number was chosen


def responses(rewards: list[float | None], scores: list[float]) -> list[dict[str, Any]]:
    same = {"prompt": "p", "label": "l", "observation_tokens": [1, 2, 3], "action_ranges": [(1, 3)], "rollout_log_probs": None}
    logs = {"judge_ok": 1.0, "judge_seconds": 0.1}
    return [{**same, "reward": reward, "scores": score, "extra_logs": logs} for reward, score in zip(rewards, scores, strict=True)]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real ``SamplesGenerator``, of whose imports vLLM and the engines' actor are not there, and two groups of answers."""
    for name in ("vllm", "openrlhf.trainer.ray.vllm_engine"):
        module = ModuleType(name)
        vars(module).update(SamplingParams=object, batch_vllm_engine_call=None)
        monkeypatch.setitem(sys.modules, name, module)
    module = importlib.import_module("openrlhf.trainer.ppo_utils.samples_generator")
    groups = [responses([None, 1.0], [math.nan, 1.0]), responses([0.0, 1.0], [0.0, 1.0])]
    monkeypatch.setattr(module.ray, "wait", lambda refs, num_returns, timeout: (refs[:1], refs[1:]))
    monkeypatch.setattr(module.ray, "get", lambda group: group)
    monkeypatch.setattr(module.SamplesGenerator, "_dispatch_prompts_to_vllm", lambda self, prompts, *_, **__: groups[: len(prompts)])
    algo = SimpleNamespace(dynamic_filtering_enable=True, dynamic_filtering_range=(0.0, 1.0))
    return module.SamplesGenerator(SimpleNamespace(args=SimpleNamespace(algo=algo)), None, None, None, [])


def test_a_score_that_is_no_number_drops_its_group_where_dynamic_filtering_is_on(generator: Any) -> None:
    batch = iter([(["data"] * 2, ["p"] * 2, ["l"] * 2, [None] * 2)])
    experiences, consumed, _ = generator._generate_vllm(batch, 2, True, max_len=8)
    assert consumed == 2
    assert [experience.rewards.item() for experience in experiences] == [0.0, 1.0]


def test_a_sample_without_reward_stops_the_run_where_dynamic_filtering_is_off(generator: Any) -> None:
    batch = iter([(["data"] * 2, ["p"] * 2, ["l"] * 2, [None] * 2)])
    experiences, _, _ = generator._generate_vllm(batch, 2, False, max_len=8)
    assert experiences[0].rewards is None
    with pytest.raises((AttributeError, TypeError)):
        Experience.concat_experiences(list(reversed(experiences)), 0)
    assert Experience.concat_experiences(experiences, 0).rewards is None  # for which OpenRLHF then asks its own reward model: there is none
