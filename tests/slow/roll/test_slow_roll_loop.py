"""Our rollout loop on ROLL's own: a prompt whose rewards are missing is dropped, with the error that came through Ray."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_slow_roll import keys

from qreward.testing import FakeEndpoint, FakeFleet, Faults

EXAMPLE = Path(__file__).parents[3] / "examples" / "roll_example"
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


class Context:
    """A rollout context of one prompt and one sample: generation is done, rewards are a real worker's."""

    is_val = False
    is_num_return_sequences_expand = False
    prompt_id = 7
    sequence_length = prompt_length = 6

    def __init__(self, worker: Any, data: Any) -> None:
        self._worker = worker
        self._data = data
        self.meta_info = {"generation_config": {"num_return_sequences": 1}}
        domain = SimpleNamespace(query_filter_config=SimpleNamespace(type="no_filter"))
        self.pipeline_config = SimpleNamespace(rewards={"a": domain})

    def get_request_data(self, meta_info: Any) -> tuple[Any, str]:
        self._data.meta_info |= self.meta_info
        return self._data, "a"

    @asynccontextmanager
    async def do_generate_and_reward(self, max_concurrency: int) -> AsyncIterator[None]:
        yield

    async def generate(self, req: Any, domain: str) -> Any:
        return req

    async def compute_rewards(self, req: Any, domain: str) -> Any:
        return await self._worker.compute_rewards.remote(req)


def test_a_prompt_that_could_not_be_judged_is_dropped_and_another_is_kept(
    cluster: Any, rollouts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roll.distributed.scheduler import user_defined_rollout_loop as rolls
    from roll.utils.import_utils import safe_import_class

    monkeypatch.setattr(rolls, "expand_requests", lambda data, **named: [data])
    monkeypatch.setattr(rolls, "is_report_data_finished", lambda data: True)
    monkeypatch.setattr(rolls, "postprocess_output_data", lambda request, data, length: data)
    loop = safe_import_class("qreward.integrations.roll.SkippingRolloutLoop")()
    endpoints = [FakeEndpoint("broken", faults=Faults(error_500=1.0)), FakeEndpoint("good", responder="judge")]
    with FakeFleet(endpoints) as fleet:
        address = {"judge_api_url": fleet.urls["broken"]}
        (broken,) = cluster("reward-broken", **keys(fleet, deadline=1) | address).workers
        (good,) = cluster("reward-good", **keys(fleet) | {"judge_api_url": fleet.urls["good"]}).workers
        assert asyncio.run(loop.process_new_prompt(Context(broken, rollouts((1, 1))))) is None
        (kept,) = asyncio.run(loop.process_new_prompt(Context(good, rollouts((1, 1)))))
    assert kept.batch["scores"].tolist() == [1.0]
    assert kept.meta_info["metrics"]["judge/ok"] == [1.0]


def test_roll_reads_the_example_and_keeps_what_is_ours(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dacite import from_dict
    from omegaconf import OmegaConf
    from roll.pipeline.rlvr.rlvr_config import RLVRConfig
    from roll.utils.import_utils import safe_import_class

    from qreward.integrations.roll import JudgeRewardWorker, SkippingRolloutLoop

    monkeypatch.chdir(tmp_path)  # ROLL makes folders for its output
    whole = OmegaConf.to_container(OmegaConf.load(EXAMPLE / "rlvr_llm_judge.yaml"), resolve=True)
    config = from_dict(data_class=RLVRConfig, data=whole)
    section = config.rewards["llm_judge"]
    assert safe_import_class(section.worker_cls) is JudgeRewardWorker
    assert safe_import_class(config.user_defined_rollout_loop_cls) is SkippingRolloutLoop
    assert section.reward_manager_config == [{"deadline": 90}]
    assert section.system_envs["QREWARD_REWARD"]
    known = {field.name for field in dataclasses.fields(section)}
    assert set(whole["rewards"]["llm_judge"]) <= known
