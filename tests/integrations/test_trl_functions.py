"""Reward functions for TRL: called as TRL calls them, and a failure is None, not a number."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
from adapter_fakes import SETTINGS, FakeScorer, installed

from qreward.errors import ConfigError, RequestTimeout
from qreward.integrations.trl import ADAPTER, judge_reward, reward
from qreward.judge.types import Verdict


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    return installed(monkeypatch)


class Trainer:
    """What a reward function can see of ``GRPOTrainer``: the methods that it is given are bound to it."""

    def __init__(self, *reward_funcs: Any) -> None:
        self.reward_funcs = list(reward_funcs)
        self.metrics: dict[str, list[float]] = {}
        self.extra: dict[str, list[Any]] = {}

    def _log_metric(self, name: str, value: float) -> None:
        self.metrics.setdefault(name, []).append(value)

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        self.extra.setdefault(column, []).extend(values)

    async def call(self, function: Any, completions: list[Any], prompts: list[Any] | None = None, **columns: Any) -> Any:
        """As version 1.16 calls it: keywords only, columns as lists."""
        given = {"trainer_state": object(), "log_extra": self._log_completion_extra, "log_metric": self._log_metric}
        asked = ["2 + 2?"] * len(completions) if prompts is None else prompts
        return await function(prompts=asked, completions=completions, completion_ids=[[1]] * len(completions), **columns, **given)


def test_contract_trl_takes_the_functions_for_coroutine_functions_and_logs_them_by_name(scorer: FakeScorer) -> None:
    made = reward(SETTINGS, name="correctness")
    assert made.__name__ == "correctness"
    for function in (made, judge_reward, functools.partial(judge_reward, settings="reward.yaml")):
        assert inspect.iscoroutinefunction(function)  # the rule of version 1.10; that of 1.16 takes all that this one takes


async def test_contract_a_call_of_the_trainer_gives_a_reward_for_each_completion_in_order(scorer: FakeScorer) -> None:
    made, trainer = reward(SETTINGS), Trainer()
    assert await trainer.call(made, ["0.25", "1", "0.5"], solution=["a", "b", "c"]) == [0.25, 1.0, 0.5]
    assert [asked["reference"] for asked in scorer.asked] == ["a", "b", "c"]
    assert set(scorer.timeouts) == {ADAPTER.deadline}


async def test_contract_a_call_of_async_grpo_has_no_handles_and_what_it_calls_is_pickled(
    scorer: FakeScorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reward.json"
    file.write_text(json.dumps(SETTINGS), encoding="utf-8")
    partial = functools.partial(judge_reward, settings=str(file))
    call = {"completions": ["1", "late"], "prompts": ["?", "?"], "completion_ids": [[1], [2]], "solution": ["a", "b"]}
    assert await pickle.loads(pickle.dumps(partial))(**call) == [1.0, None]
    monkeypatch.setenv("QREWARD_REWARD", str(file))
    assert await pickle.loads(pickle.dumps(judge_reward))(**call) == [1.0, None]


async def test_a_failed_judge_is_none_and_never_a_number_that_the_user_did_not_choose(scorer: FakeScorer) -> None:
    completions = ["1", "late", "0"]
    for chosen in ({}, {"on_failure": "none"}, {"on_failure": "default"}):
        assert await Trainer().call(reward({**SETTINGS, **chosen}), completions) == [1.0, None, 0.0]
    assert await Trainer().call(reward(SETTINGS, on_failure=0.0), completions) == [1.0, 0.0, 0.0]
    assert await Trainer().call(reward({**SETTINGS, "on_failure": -1}), completions) == [1.0, -1.0, 0.0]
    with pytest.raises(RequestTimeout):
        await Trainer().call(reward(SETTINGS, on_failure="raise"), completions)


async def test_beside_another_function_a_failure_must_be_chosen_for_trl_would_count_it_as_zero(scorer: FakeScorer) -> None:
    made = reward(SETTINGS, name="correctness")
    with pytest.raises(ConfigError, match=r"correctness is one of 2 reward functions.*combined.*on_failure"):
        await Trainer(made, len).call(made, ["1"])
    assert await Trainer(made).call(made, ["late"]) == [None]
    for chosen in ("none", -1.0):
        by_choice = reward(SETTINGS, on_failure=chosen)
        assert await Trainer(by_choice, len).call(by_choice, ["late"]) == [None if chosen == "none" else chosen]


async def test_metrics_and_reasons_are_logged_each_time_where_trl_gives_the_means(scorer: FakeScorer) -> None:
    trainer = Trainer()
    made = reward(SETTINGS, name="correctness")
    await trainer.call(made, ["1", "late", "0.5", "late"])
    await trainer.call(made, ["1", "1"])
    assert trainer.metrics["correctness/ok"] == [0.5, 1.0]
    assert trainer.metrics["correctness/tokens"] == [14.0, 14.0]
    assert len(trainer.metrics["correctness/seconds"]) == 2
    assert trainer.extra == {
        "correctness_error": ["", "RequestTimeout: no answer in time", "", "RequestTimeout: no answer in time", "", ""]
    }


async def test_columns_fill_the_fields_that_the_prompt_names_and_the_trainers_handles_do_not(scorer: FakeScorer) -> None:
    judge = {"model": "j", "prompt": "{prompt} {response} {rubric} {topic} {trainer_state}"}
    made = reward({**SETTINGS, "judge": judge, "columns": {"topic": "subject", "reference": "nowhere"}}, columns={"reference": "gold"})
    await Trainer().call(made, ["1", "1"], rubric=["strict", "mild"], subject=["sums", "sets"], gold=["4", "5"], other=[1, 2])
    assert scorer.asked == [
        {"prompt": "2 + 2?", "response": "1", "reference": "4", "rubric": "strict", "topic": "sums"},
        {"prompt": "2 + 2?", "response": "1", "reference": "5", "rubric": "mild", "topic": "sets"},
    ]


class NeedsReference(FakeScorer):
    """Raises what a judge raises whose prompt names ``{reference}``."""

    async def score(self, prompt: Any, response: Any, **given: Any) -> Verdict:
        if given["reference"] is None:
            raise ConfigError("the prompt names {reference}, but the item has no 'reference' (it is missing or None)")
        return await super().score(prompt, response, **given)


async def test_numbers_and_arrays_of_numpy_in_a_list_are_values_as_any_other(scorer: FakeScorer) -> None:
    solutions = [numpy.float32(4), numpy.array([1, 2]), {"sum": numpy.int64(4)}]
    assert await Trainer().call(reward(SETTINGS), ["1"] * 3, solution=solutions) == [1.0] * 3
    found = [each["reference"] for each in scorer.asked]
    assert found == [4.0, [1, 2], {"sum": 4}]
    json.dumps(found)


async def test_a_row_whose_reference_is_none_fails_alone_but_no_column_for_it_is_a_wrong_setting() -> None:
    for columns, given in (({}, "solution"), ({"reference": "gold"}, "gold")):
        made, trainer = reward(judge=NeedsReference(), columns=columns), Trainer()
        assert await trainer.call(made, ["1", "0.5"], **{given: [None, None]}) == [None, None]
        assert await trainer.call(made, ["1", "0.5"], **{given: ["a", None]}) == [1.0, None]
        named = [reason.startswith("ConfigError: the prompt names {reference}") for reason in trainer.extra["judge_error"]]
        assert named == [True, True, False, True]
    made = reward(judge=NeedsReference(), on_failure=-1.0)
    assert await Trainer().call(made, ["1"], answer=[None]) == [-1.0]
    with pytest.raises(ConfigError, match="reference"):
        await Trainer().call(reward(judge=NeedsReference(), on_failure=-1.0), ["1", "0.5"], other=["a", "b"])


async def test_a_judge_of_ones_own_takes_the_place_of_settings() -> None:
    mine = FakeScorer(lambda response: RequestTimeout("no answer") if response == "late" else float(len(response)))
    made = reward(judge=mine, name="length", deadline=9.0, columns={"hint": "note"})
    assert await Trainer().call(made, ["abc", "late"], note=["x", "y"]) == [3.0, None]
    assert ([asked["hint"] for asked in mine.asked], mine.timeouts) == (["x", "y"], [9.0, 9.0])
    with pytest.raises(ValueError, match="not both"):
        reward(SETTINGS, judge=mine)
    with pytest.raises(ConfigError, match="on_failure"):
        reward(judge=mine, on_failure="zero")  # type: ignore[arg-type]


def test_wrong_settings_show_when_the_function_is_made(scorer: FakeScorer) -> None:
    with pytest.raises(ConfigError, match="QREWARD_REWARD"):
        reward()
    with pytest.raises(ConfigError, match="on_failure"):
        reward(SETTINGS, on_failure="zero")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="deadline"):
        reward(SETTINGS, deadline=-1)


def test_all_calls_run_in_the_trainers_own_loop_and_none_is_made(scorer: FakeScorer) -> None:
    loop, made = asyncio.new_event_loop(), reward(SETTINGS)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    before = threading.active_count()
    for _ in range(3):
        call = made(prompts=["?"] * 8, completions=["1"] * 8, completion_ids=[[1]] * 8)
        assert asyncio.run_coroutine_threadsafe(call, loop).result(60) == [1.0] * 8  # type: ignore[arg-type,var-annotated]
    assert scorer.loops == {id(loop)}
    assert threading.active_count() == before
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
