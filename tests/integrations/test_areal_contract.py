"""AReaL 1.0 pickles our function, calls it in a child of its process pool, or awaits the other one, as it does here with its signatures."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import FakeScorer, configured, stub_modules
from trainers_tools import fleet_of, settings_of

from qreward.errors import BadRequest, QRewardError, RequestTimeout
from qreward.integrations.areal import ADAPTER, HOST_LIMIT, NoReward, async_reward, reward
from qreward.integrations.trainers.rewarder import LATE, close_all
from qreward.testing import FakeFleet, Faults

pytestmark = pytest.mark.real_time

CALL = ("<|im_start|>user\n2 + 2?", "0.75<|im_end|>", [1, 2], [3, 4])


async def rewarded(way: str, *call: Any, **data: Any) -> Any:
    return reward(*call, **data) if way == "function" else await async_reward(*call, **data)


def test_contract_the_function_is_found_by_its_name_and_has_the_signature_of_reward_fn() -> None:
    assert getattr(importlib.import_module("qreward.integrations.areal"), "reward") is reward  # noqa: B009 - by its name
    assert not inspect.iscoroutinefunction(reward)
    assert inspect.iscoroutinefunction(async_reward)
    for function in (reward, async_reward):
        *named, rest = inspect.signature(function).parameters.values()
        assert [each.name for each in named] == ["prompt", "completions", "prompt_ids", "completion_ids"]
        assert rest.kind is inspect.Parameter.VAR_KEYWORD


@pytest.fixture(scope="module")
def fleet() -> Iterator[FakeFleet]:
    with fleet_of(process=True) as made:
        yield made


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_contract_the_function_works_in_children_of_a_process_pool(
    method: str, fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QREWARD_REWARD", str(settings_of(fleet, tmp_path)))
    rows = [(f"{at} + {at}?", f"{2 * at + at % 2}<|im_end|>", [1], [2]) for at in range(8)]
    if method == "fork":  # of a process that has used it, and whose threads the child has not
        assert reward(*rows[0], answer="0") == 1.0
    with ProcessPoolExecutor(2 if method == "fork" else 1, mp_context=multiprocessing.get_context(method)) as pool:
        found = [pool.submit(partial(reward, *row, answer=str(2 * at))) for at, row in enumerate(rows)]
        assert [each.result(30) for each in found] == [float(at % 2 == 0) for at in range(8)]
    close_all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_error_of_a_failed_judge_comes_back_from_a_child(fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QREWARD_REWARD", str(settings_of(fleet, tmp_path, deadline=1.0)))
    fleet.set("judge-0", faults=Faults(error_500=1.0))
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            error = pool.submit(partial(reward, *CALL, answer="4")).exception(30)
    finally:
        fleet.set("judge-0", faults=Faults())
    assert isinstance(error, QRewardError)
    assert not isinstance(error, TimeoutError)  # of which AReaL makes a 0


@pytest.mark.parametrize("way", ["function", "coroutine"])
async def test_columns_are_what_is_scored(way: str, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}]
    assert await rewarded(way, *CALL, answer="4", messages=messages) == 0.75
    assert await rewarded(way, *CALL) == 0.75
    configured(monkeypatch, tmp_path, columns={"reference": "solutions", "prompt": "query_text"})
    assert await rewarded(way, *CALL, solutions="four", query_text="two and two?") == 0.75
    asked = [(each["prompt"], each["response"], each["reference"]) for each in scorer.asked]
    assert asked == [(messages, "0.75", "4"), (CALL[0], "0.75", None), ("two and two?", "0.75", "four")]


@pytest.mark.parametrize("way", ["function", "coroutine"])
async def test_a_failed_judge_never_becomes_zero_unless_the_user_chose_it(
    way: str, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing = (CALL[0], "no number", [1], [2])
    with pytest.raises(NoReward if way == "function" else RequestTimeout, match="no answer in time"):
        await rewarded(way, *failing)
    configured(monkeypatch, tmp_path, on_failure="none")
    assert await rewarded(way, *failing) is None
    for chosen in (0.0, -1.0):
        configured(monkeypatch, tmp_path, on_failure=chosen)
        assert await rewarded(way, *failing) == chosen


@pytest.mark.parametrize("way", ["function", "awaited"])
async def test_a_completion_that_is_none_is_not_asked_about_and_has_no_reward(way: str, scorer: FakeScorer) -> None:
    prompt, _, *tokens = CALL
    with pytest.raises(BadRequest, match="no response"):
        await rewarded(way, prompt, None, *tokens)
    assert scorer.asked == []


async def test_each_has_the_deadline_of_where_it_runs_and_one_that_areal_would_not_wait_for_is_said_once(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reward(*CALL)
    await async_reward(*CALL)
    assert scorer.timeouts == [12.0, 180.0]
    assert ADAPTER.deadline + LATE < HOST_LIMIT - 1 == 14.0
    assert not caplog.records
    configured(monkeypatch, tmp_path, deadline=14.0)
    reward(*CALL)
    reward(*CALL)
    assert len([record for record in caplog.records if "AsyncRewardWrapper, which returns a reward of 0" in record.message]) == 1


# the workflow, on a stub with the parts of ``areal/workflow/rlvr.py`` that it overrides


class RLVRWorkflow:
    def __init__(
        self,
        reward_fn: Any,
        gconfig: Any,
        tokenizer: Any,
        enable_thinking: bool = False,
        get_input_ids_fn: Any = None,
        data_extract_prompt_fn: Any = None,
    ) -> None:
        self.reward_fn, self.gconfig, self.tokenizer = reward_fn, gconfig, tokenizer
        if not isinstance(reward_fn, str):
            self.async_reward_fn = "a wrapper with a process pool"

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        if isinstance(self.reward_fn, str):
            self.async_reward_fn = "a wrapper with a process pool"
        return {"rewards": await self._compute_rewards(await engine.agenerate(), "2 + 2?", data)}

    async def _compute_rewards(self, resp: Any, prompt_str: str, task_data: dict[str, Any]) -> float:
        raise NotImplementedError


def engine(text: str) -> Any:
    """It gives AReaL's ``ModelResponse``."""

    async def agenerate() -> Any:
        return SimpleNamespace(input_tokens=[1], output_tokens=text)

    return SimpleNamespace(agenerate=agenerate)


@pytest.fixture
def workflow(scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch) -> Any:
    tracer = {"trace_session": lambda phase: lambda function: function}
    logged: list[dict[str, float]] = []
    stats = SimpleNamespace(get=lambda scope: SimpleNamespace(scalar=lambda **metrics: logged.append({"scope": scope, **metrics})))
    context = SimpleNamespace(stat_scope=lambda: "rollout")
    rlvr = {"RLVRWorkflow": RLVRWorkflow, "stats_tracker": stats, "workflow_context": context}
    stub_modules(monkeypatch, {"areal.utils.perf_tracer": tracer, "areal.workflow.rlvr": rlvr})
    monkeypatch.delitem(sys.modules, "qreward.integrations.areal.workflow", raising=False)
    made = importlib.import_module("qreward.integrations.areal.workflow").QRewardRLVRWorkflow
    monkeypatch.delitem(sys.modules, "qreward.integrations.areal.workflow")
    found = made(gconfig=None, tokenizer=SimpleNamespace(decode=lambda tokens: tokens))
    found.logged = logged
    return found


async def test_contract_the_workflow_awaits_rewards_in_its_own_loop_and_makes_no_process_pool(workflow: Any, scorer: FakeScorer) -> None:
    trajectory, loop = await workflow.arun_episode(engine("0.75<|im_end|>"), {"answer": "4"}), id(asyncio.get_running_loop())
    assert trajectory == {"rewards": 0.75}
    assert scorer.loops == {loop}
    assert workflow.async_reward_fn is async_reward
    (logged,) = workflow.logged
    assert logged | {"judge_seconds": 0} == {
        "scope": "rollout", "judge_ok": 1.0, "judge_seconds": 0, "judge_tokens": 7.0, "judge_cost": 0.0, "judge_unreported": 0.0,
    }  # fmt: skip


async def test_a_failure_ends_the_episode_and_none_leaves_it_out(workflow: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RequestTimeout):
        await workflow.arun_episode(engine("no number"), {})
    configured(monkeypatch, tmp_path, on_failure="none")
    assert await workflow.arun_episode(engine("no number"), {}) is None
    configured(monkeypatch, tmp_path, on_failure=-1.0)
    assert await workflow.arun_episode(engine("no number"), {}) == {"rewards": -1.0}
