"""What ROLL asks of a reward worker and of a rollout loop, signature by signature, on stubs of it; tests/slow/roll runs the real one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import roll_stubs
from adapter_fakes import REWARDER, FakeScorer, made_of, number_or_late
from roll_stubs import FLAG, DataProto, Dispatch, tensor

from qreward.errors import ConfigError
from qreward.integrations import roll
from qreward.integrations.roll import MOST_DROPPED

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def stubs() -> Iterator[None]:
    with roll_stubs.installed():
        yield


def started(monkeypatch: pytest.MonkeyPatch, scorer: FakeScorer, **settings: Any) -> Any:
    """A worker as ROLL makes it and initializes it."""
    monkeypatch.setattr(REWARDER, "rewarder", lambda config, deadline, **_: made_of(scorer, deadline))
    keys = {"judge_model_name": "judge-7b", "judge_prompt": None, "judge_model_type": "api", "judge_api_url": "http://127.0.0.1:9/v1"}
    config = SimpleNamespace(**keys, judge_api_key="k", reward_manager_config=[settings], system_envs={})
    worker = roll.JudgeRewardWorker(worker_config=config)
    worker.initialize(SimpleNamespace(actor_train=SimpleNamespace(model_args=None)))
    return worker


def data(*responses: int) -> DataProto:
    batch = {"prompts": tensor([[0, 9]] * len(responses)), "responses": tensor([[value, 0] for value in responses])}
    columns = {name: [f"{name}{at}" for at in range(len(responses))] for name in ("id", "ground_truth", "domain", "rollout_id")}
    return DataProto(batch, columns, {"global_step": 3, "is_offload_states": True})


def test_contract_the_methods_are_registered_and_only_rewards_are_async() -> None:
    initialize, compute = roll.JudgeRewardWorker.initialize, roll.JudgeRewardWorker.compute_rewards
    assert list(inspect.signature(initialize).parameters) == ["self", "pipeline_config"]
    assert list(inspect.signature(compute).parameters) == ["self", "data"]
    assert getattr(initialize, FLAG)["dispatch_mode"] is Dispatch.ONE_TO_ALL
    assert getattr(compute, FLAG) == {"dispatch_mode": Dispatch.DP_MP_COMPUTE, "clear_cache": False}
    assert inspect.iscoroutinefunction(compute)
    assert not inspect.iscoroutinefunction(initialize)


async def test_contract_a_batch_comes_back_in_order_with_the_three_tensors_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = started(monkeypatch, FakeScorer(number_or_late))
    assert (worker.rank_info.dp_rank, worker.rank_info.dp_size) == (1, 2)
    assert worker.pipeline_config.actor_train.model_args is None, "ROLL's own worker was initialized too"
    output = await worker.compute_rewards(data(3, 1, 2))
    assert {name: (list(values), values.dtype) for name, values in output.batch.items()} == {
        "token_level_rewards": ([[0.0, 0.0]] * 3, "float16"),
        "response_level_rewards": ([3.0, 1.0, 2.0], "float16"),
        "scores": ([3.0, 1.0, 2.0], "float16"),
    }
    assert set(output.meta_info) == {"metrics"}
    assert all(len(values) == 3 and all(isinstance(value, float) for value in values) for values in output.meta_info["metrics"].values())


async def test_contract_decoding_does_not_hold_up_the_loop_of_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = started(monkeypatch, FakeScorer(number_or_late))
    threads: set[str] = set()
    decode = worker.actor_tokenizer.batch_decode
    worker.actor_tokenizer = SimpleNamespace(
        batch_decode=lambda *given, **named: threads.add(threading.current_thread().name) or decode(*given, **named)
    )
    await worker.compute_rewards(data(1))
    assert [name.rpartition("_")[0] for name in threads] == ["qreward-decoding"]


def test_a_wrong_setting_ends_the_run_before_anything_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, said in ({"on_failure": "none"}, "on_failure"), ({"deadlin": 3}, "deadlin"):
        with pytest.raises(ConfigError, match=said):
            started(monkeypatch, FakeScorer(number_or_late), **settings)


async def test_calls_of_a_trace_see_their_own_context_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace

    seen: dict[str, str] = {}

    class Looking(FakeScorer):
        async def score(self, prompt: Any, response: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            seen[response] = format(trace.get_current_span().get_span_context().span_id, "x")
            return await super().score(prompt, response, **named)

    worker = started(monkeypatch, Looking(number_or_late))
    calls = [data(at) for at in range(1, 9)]
    for at, call in enumerate(calls, start=1):
        call.meta_info["_otel_ctx"] = {"traceparent": f"00-{1:032x}-{at:016x}-01"} if at < 8 else {}
    await asyncio.gather(*map(worker.compute_rewards, calls))
    assert seen == {str(at): str(at % 8) for at in range(1, 9)}


def context_of(*outcomes: Any) -> SimpleNamespace:
    """A rollout context whose rewards are these, or raise."""

    async def compute_rewards(req: Any, domain: str) -> Any:
        if isinstance(req, Exception):
            raise req
        return [req]

    return SimpleNamespace(requests=outcomes, compute_rewards=compute_rewards, prompt_id=7)


async def test_contract_the_rollout_loop_drops_a_prompt_that_could_not_be_judged_and_ends_the_run_when_all_are() -> None:
    loop = roll.SkippingRolloutLoop()
    assert list(inspect.signature(loop.process_new_prompt).parameters) == ["context"]
    lost = roll.RewardUnavailable("no endpoint")
    assert await loop.process_new_prompt(context_of("a", "b")) == [["a"], ["b"]]
    with pytest.raises(ZeroDivisionError):
        await loop.process_new_prompt(context_of("a", ZeroDivisionError()))
    assert await loop.process_new_prompt(context_of("a", lost)) is None
    for _ in range(MOST_DROPPED - 2):
        assert await loop.process_new_prompt(context_of(lost)) is None
    with pytest.raises(roll.RewardUnavailable, match=r"in a row were dropped, because rewards are missing\. The last: no endpoint"):
        await loop.process_new_prompt(context_of(lost))
