"""Several reward functions as one, so that a completion that one of them could not score is left out; and TRL's rows and conversations."""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy
import pytest
from adapter_fakes import SETTINGS, FakeScorer, installed

from qreward.errors import ConfigError
from qreward.integrations import trl as adapter
from qreward.integrations.trainers.texts import conversation, rows_of
from qreward.integrations.trl import combined, judge_reward, reward

pytestmark = pytest.mark.real_time


async def called(function: Any, *completions: Any, **given: Any) -> Any:
    return await function(
        prompts=["2 + 2?"] * len(completions), completions=list(completions), completion_ids=[[1]] * len(completions), **given
    )


def lengths(completions: list[str], **given: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


async def some(completions: list[str], **given: Any) -> list[float | None]:
    return [None if completion == "1" else float("nan") if completion == "2" else 10.0 for completion in completions]


async def test_a_completion_without_one_of_its_rewards_has_none_whatever_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    made = combined(reward(SETTINGS), lengths, weights=[1.0, 0.5], name="total")
    assert made.__name__ == "total"
    assert await called(made, "1", "late", "0.5") == [1.5, None, 2.0]
    told: dict[str, float] = {}
    assert await called(combined(lengths, some), "1", "2", "345", log_metric=told.__setitem__) == [None, None, 13.0]
    assert told == {"rewards/lengths/mean": pytest.approx(5 / 3), "rewards/some/mean": 10.0}


async def test_a_rank_without_a_value_logs_the_names_that_the_others_log_for_trl_waits_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL before 1.14 gathers the metrics of all ranks name by name, each rank by its own names: a name less is a wait for ever."""
    installed(monkeypatch)
    made = combined(reward(SETTINGS), some)
    ranks: list[tuple[dict[str, float], dict[str, Any]]] = []
    for completions in (["1", "2"], ["0.5", "3"], ["late", "late"]):
        metrics: dict[str, float] = {}
        columns: dict[str, Any] = {}
        await called(made, *completions, log_metric=metrics.__setitem__, log_extra=columns.__setitem__)
        ranks.append((metrics, columns))
    logged = [(list(metrics), list(columns)) for metrics, columns in ranks]
    assert logged == [logged[0]] * 3
    assert math.isnan(ranks[0][0]["rewards/some/mean"])  # which TRL leaves out when it logs
    assert ranks[1][0]["rewards/some/mean"] == 10.0
    assert math.isnan(ranks[2][0]["rewards/judge/mean"])


async def test_functions_of_one_name_are_refused_because_their_logs_would_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    for functions, name in (
        ((functools.partial(scaled, by=1.0), functools.partial(functools.partial(scaled, by=3.0))), "scaled"),
        ((reward(SETTINGS), reward({**SETTINGS, "deadline": 7.0})), "judge"),
    ):
        with pytest.raises(ValueError, match=f"'{name}' is the name of several; give each a name of its own"):
            combined(*functions)
    metrics: dict[str, float] = {}
    made = combined(functools.partial(scaled, by=3.0), reward(SETTINGS), reward(SETTINGS, name="second"), weights=[1.0, 0.0, 0.0])
    assert await called(made, "1", "0.5", log_metric=metrics.__setitem__) == [3.0, 9.0]
    assert {"rewards/scaled/mean", "rewards/judge/mean", "rewards/second/mean", "judge/ok", "second/ok"} <= metrics.keys()


def scaled(completions: list[str], by: float, **given: Any) -> list[float]:
    return [len(completion) * by for completion in completions]


async def test_a_missing_reward_is_refused_where_trl_would_count_it_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """By versions of TRL: whether a reward that is None is refused."""
    installed(monkeypatch)
    versions = {"0.29.1": True, "1.5.1": True, "1.6.0": False, "1.6.0.dev0": False, "1.16.0": False, "2.0": False}
    partial = functools.partial(judge_reward, settings=SETTINGS)
    found = {}
    for trl in versions:
        monkeypatch.setattr(adapter, "version", lambda _, trl=trl: trl)
        asked: list[Callable[[], Any]] = [
            lambda: reward(SETTINGS),
            lambda: reward(SETTINGS, on_failure="none"),
            lambda: reward(judge=FakeScorer()),
            lambda: called(partial, "late"),
            lambda: called(combined(some), "1"),
        ]
        found[trl] = [f"TRL {trl} counts as 0.0; install trl>=1.6" in await error_of(ask) for ask in asked]
        for chosen in ("raise", -1.0):
            assert await called(reward(SETTINGS, on_failure=chosen), "1") == [1.0]
        assert await called(combined(lengths, some), "345") == [13.0]
    assert found == {trl: [refused] * 5 for trl, refused in versions.items()}


async def error_of(ask: Callable[[], Any]) -> str:
    try:
        found = ask()
        if inspect.iscoroutine(found):
            await found
    except ConfigError as error:
        return str(error)
    return ""


async def test_plain_functions_run_in_threads_with_all_that_trl_gives_and_objects_are_awaited() -> None:
    seen: dict[str, Any] = {}

    def noting(prompts: Any, completions: Any, completion_ids: Any, **given: Any) -> list[float]:
        seen.update(given, main=threading.current_thread() is threading.main_thread(), ids=completion_ids)
        return [0.0]

    class Instance:
        async def __call__(self, completions: list[str], **given: Any) -> list[float]:
            return [2.0] * len(completions)

    await called(combined(noting), "a", solution=["4"], trainer_state="state")
    assert seen == {"solution": ["4"], "trainer_state": "state", "main": False, "ids": [[1]]}
    told: dict[str, float] = {}
    assert await called(combined(Instance()), "a", log_metric=told.__setitem__) == [2.0]
    assert told == {"rewards/Instance/mean": 2.0}


async def test_too_few_rewards_and_wrong_weights_are_errors() -> None:
    with pytest.raises(ValueError, match="'few' returned 1 rewards for 2 completions"):
        await called(combined(lengths, few), "a", "b")
    for functions, weights, said in (((lengths, some), [1.0], "2 functions and 1 weights"), ((), None, "0 functions")):
        with pytest.raises(ValueError, match=said):
            combined(*functions, weights=weights)


def few(**given: Any) -> list[float]:
    return [1.0]


USER = {"role": "user", "content": "2 + 2?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
TOOL = {"role": "tool", "content": "4"}


def said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


LOOK = said([{"type": "text", "text": "4"}, {"type": "image"}])


def test_what_is_judged_is_the_last_message_of_the_assistant_and_what_came_before_is_the_prompt() -> None:
    table: list[tuple[Any, Any, Any]] = [
        ("2 + 2?", "4", ("2 + 2?", "4")),
        ([USER], [said("4")], ([USER], "4")),
        ([USER], [CALLS, TOOL, said("four")], ([USER, CALLS, TOOL], "four")),
        ("2 + 2?", [CALLS, TOOL, said("four")], ([USER, CALLS, TOOL], "four")),
        ([USER], [said([{"type": "text", "text": "4"}, {"type": "text", "text": "."}])], ([USER], "4\n.")),
        ([USER], [LOOK], ([USER], [LOOK])),
        ([USER], [CALLS], ([USER], [CALLS])),
        ([USER], [said("")], ([USER], "")),
        ([USER], [said(None)], ([USER], None)),
        ([USER], [], ([USER], None)),
        ([USER], [TOOL], ([USER], None)),
    ]
    wrong = [(*row, found) for row in table if (found := conversation(*row[:2])) != row[2]]
    assert wrong == []


def test_columns_are_lists_or_arrays_with_a_value_for_each_completion() -> None:
    rows = list(rows_of(["a", "b"], ["c", "d"], {"one": [1, 2], "array": numpy.array(["x", "y"]), "text": "xy", "n": 3}))
    assert rows == [
        {"one": 1, "array": "x", "prompt": "a", "response": "c"},
        {"one": 2, "array": "y", "prompt": "b", "response": "d"},
    ]
    with pytest.raises(ConfigError, match="the column 'short' has 1 values for 2 completions; it needs one for each"):
        list(rows_of(["a", "b"], ["c", "d"], {"short": [1]}))


async def test_an_infinite_reward_of_a_function_is_no_reward() -> None:
    async def endless(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [inf, -inf, nan, 1.0][: len(prompts)]

    assert await combined(endless)(["p"] * 4, ["c"] * 4) == [None, None, None, 1.0]
