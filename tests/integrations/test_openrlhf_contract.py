"""OpenRLHF 0.11.2 finds our file by its path and calls what is in it as it does here, in stubs with its exact signatures."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from adapter_fakes import FakeScorer, configured, stub_modules

from qreward.errors import ConfigError
from qreward.integrations import openrlhf

pytestmark = pytest.mark.real_time

PROMPT = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"


class SingleTurnAgentExecutor:
    """What it does with rewards, and nothing else: see ``openrlhf/utils/agent.py``."""

    def __init__(self, remote_rm_url: Any = None) -> None:
        self.reward_endpoints = [remote_rm_url] if isinstance(remote_rm_url, str) else remote_rm_url or []
        self.reward_func: Any = None
        if self.reward_endpoints and self.reward_endpoints[0].endswith(".py"):
            self.reward_func = loaded("reward_func", self.reward_endpoints[0]).reward_func

    async def execute(
        self, prompt: Any, label: Any, sampling_params: Any, max_length: int, hf_tokenizer: Any, llm_engine: Any, images: Any = None
    ) -> Any:
        output: dict[str, Any] = {"prompt": prompt, "label": label, "reward": None, "scores": None, "extra_logs": {}}
        if self.reward_endpoints:
            try:
                query = prompt + await llm_engine()
                found = (await self._fetch_rewards_via_func([query], [prompt], [label]))[0] if self.reward_func else None
                if found:
                    score = found.get("scores")
                    score = found.get("rewards") if score is None else score
                    output.update(reward=found.get("rewards"), scores=score, extra_logs=found.get("extra_logs") or {})
            except Exception as error:
                output["logged"] = str(error)
        return output

    async def _fetch_rewards_via_func(self, queries_list: Any, prompts_list: Any, labels_list: Any) -> Any:
        samples = zip(queries_list, prompts_list, labels_list, strict=True)
        tasks = [asyncio.to_thread(self.reward_func, *([each] for each in sample)) for sample in samples]
        return await asyncio.gather(*tasks)


def loaded(name: str, path: str) -> ModuleType:
    """As OpenRLHF loads a file of the user's; the module gets no place in ``sys.modules``."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def executor(scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ``--train.agent_func_path`` makes."""
    stub_modules(monkeypatch, {"openrlhf.utils.agent": {"SingleTurnAgentExecutor": SingleTurnAgentExecutor}})
    made = loaded("agent_module", openrlhf.__file__)
    return made.AgentExecutor()


async def executed(executor: Any, response: str, label: Any = "4") -> dict[str, Any]:
    async def generate() -> str:
        return response

    output: dict[str, Any] = await executor.execute(PROMPT, label, None, 2048, None, generate)
    return output


def test_contract_the_function_has_the_signature_that_is_called_and_is_no_coroutine_function() -> None:
    function = loaded("reward_func", openrlhf.__file__).reward_func
    assert list(inspect.signature(function).parameters)[:3] == ["queries", "prompts", "labels"]
    assert not inspect.iscoroutinefunction(function)


@pytest.mark.parametrize("way", ["function", "executor"])
async def test_contract_a_file_of_ours_gives_the_executor_its_rewards(way: str, executor: Any, scorer: FakeScorer) -> None:
    made = executor if way == "executor" else SingleTurnAgentExecutor(openrlhf.__file__)
    output = await executed(made, "0.75<|im_end|>")
    assert (output["reward"], output["scores"]) == (0.75, 0.75)
    assert output["extra_logs"]["judge_ok"] == 1.0
    assert [scorer.asked[0][name] for name in ("prompt", "response", "reference")] == [PROMPT, "0.75", "4"]
    assert scorer.timeouts == [openrlhf.ADAPTER.deadline]
    assert (scorer.loops == {id(asyncio.get_running_loop())}) == (way == "executor"), "the function is called in threads"


@pytest.mark.parametrize("way", ["function", "executor"])
async def test_a_failed_judge_never_becomes_zero_unless_the_user_chose_it(
    way: str, executor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = executor if way == "executor" else SingleTurnAgentExecutor(openrlhf.__file__)
    output = await executed(made, "no number")
    assert output["reward"] is None  # the run stops where experience is made,
    assert math.isnan(output["scores"])  # unless the group is dropped: no range has NaN in it
    assert output["extra_logs"]["judge_ok"] == 0.0
    assert "dropped with its group" in caplog.text
    for chosen in (0.0, -1.0):
        configured(monkeypatch, tmp_path, on_failure=chosen)
        output = await executed(made, "no number")
        assert (output["reward"], output["scores"], output["extra_logs"]["judge_ok"]) == (chosen, chosen, 0.0)
    configured(monkeypatch, tmp_path, on_failure="raise")
    output = await executed(made, "no number")
    assert (output["reward"], output["scores"]) == (None, None)
    assert "no answer in time" in output["logged"]


def test_a_response_that_cannot_be_separated_from_its_prompt_is_a_failure_that_says_what_to_do(
    scorer: FakeScorer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reward_func = loaded("reward_func", openrlhf.__file__).reward_func
    assert reward_func(["0.5"], [PROMPT], ["4"])["rewards"] is None
    assert "columns: {response: query}" in caplog.text
    assert scorer.asked == []
    configured(monkeypatch, tmp_path, columns={"response": "query"})
    assert reward_func(["0.5"], [PROMPT], ["4"])["rewards"] == 0.5


def test_several_samples_at_once_give_lists_and_an_empty_label_is_no_reference(scorer: FakeScorer) -> None:
    reward_func = loaded("reward_func", openrlhf.__file__).reward_func
    found = reward_func([f"{PROMPT}0.25", f"{PROMPT}no", f"{PROMPT}0.5"], [PROMPT] * 3, ["a", "b", ""], datasource="x")
    assert (found["rewards"], found["extra_logs"]["judge_ok"]) == ([0.25, None, 0.5], [1.0, 0.0, 1.0])
    assert len(found["scores"]) == len(found["extra_logs"]["judge_seconds"]) == 3
    assert [each["reference"] for each in scorer.asked] == ["a", "b", None]


def test_without_settings_the_executor_is_not_made(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QREWARD_REWARD")
    with pytest.raises(ConfigError, match="QREWARD_REWARD"):
        type(executor)()


def test_the_path_of_both_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "qreward.integrations.openrlhf")
    runpy.run_module("qreward.integrations.openrlhf", run_name="__main__")
    assert capsys.readouterr().out == f"{openrlhf.__file__}\n"
