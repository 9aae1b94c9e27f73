"""Several reward functions as one, so that a completion that one of them could not score is left out; and TRL's rows and conversations."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from adapter_fakes import SETTINGS, installed, run

from qreward.integrations.trl import combined, reward
from qreward.integrations.trl.rows import conversation, rows_of


def called(function: Any, *completions: Any, **given: Any) -> Any:
    return run(
        function(prompts=["2 + 2?"] * len(completions), completions=list(completions), completion_ids=[[1]] * len(completions), **given)
    )


def lengths(completions: list[str], **given: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


async def some(completions: list[str], **given: Any) -> list[float | None]:
    return [None if completion == "1" else float("nan") if completion == "2" else 10.0 for completion in completions]


def test_a_completion_that_the_judge_could_not_score_has_no_reward_whatever_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    made = combined(reward(SETTINGS), lengths, weights=[1.0, 0.5], name="total")
    assert made.__name__ == "total"
    assert called(made, "1", "late", "0.5") == [1.5, None, 2.0]


def test_none_and_nan_of_any_function_leave_the_completion_out() -> None:
    assert called(combined(lengths, some), "1", "2", "345") == [None, None, 13.0]


def test_each_function_is_logged_under_the_name_that_trl_would_give_it() -> None:
    told: dict[str, float] = {}
    called(combined(lengths, some), "1", "345", log_metric=told.__setitem__)
    assert told == {"rewards/lengths/mean": 2.0, "rewards/some/mean": 10.0}
    told.clear()
    called(combined(some), "1", "2", log_metric=told.__setitem__)
    assert told == {}


def test_plain_functions_run_in_threads_and_get_all_that_trl_gives() -> None:
    seen: dict[str, Any] = {}

    def noting(prompts: Any, completions: Any, completion_ids: Any, **given: Any) -> list[float]:
        seen.update(given, main=threading.current_thread() is threading.main_thread(), ids=completion_ids)
        return [0.0]

    called(combined(noting), "a", solution=["4"], trainer_state="state")
    assert seen == {"solution": ["4"], "trainer_state": "state", "main": False, "ids": [[1]]}


class Instance:
    async def __call__(self, completions: list[str], **given: Any) -> list[float]:
        return [2.0] * len(completions)


def test_an_object_that_is_called_and_awaited_is_taken_as_trl_takes_it() -> None:
    told: dict[str, float] = {}
    assert called(combined(Instance()), "a", log_metric=told.__setitem__) == [2.0]
    assert told == {"rewards/Instance/mean": 2.0}


def test_too_few_rewards_and_wrong_weights_are_errors() -> None:
    with pytest.raises(ValueError, match="'few' gave 1 rewards for 2 completions"):
        called(combined(lengths, few), "a", "b")
    with pytest.raises(ValueError, match="2 functions and 1 weights"):
        combined(lengths, some, weights=[1.0])
    with pytest.raises(ValueError, match="0 functions"):
        combined()


def few(**given: Any) -> list[float]:
    return [1.0]


USER = {"role": "user", "content": "2 + 2?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
TOOL = {"role": "tool", "content": "4"}


def said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        ("2 + 2?", "4", ("2 + 2?", "4")),
        ([USER], [said("4")], ([USER], "4")),
        ([USER], [CALLS, TOOL, said("four")], ([USER, CALLS, TOOL], "four")),
        ("2 + 2?", [CALLS, TOOL, said("four")], ([USER, CALLS, TOOL], "four")),
        ([USER], [said([{"type": "text", "text": "4"}, {"type": "image"}, {"type": "text", "text": "."}])], ([USER], "4\n\n.")),
        ([USER], [CALLS], ([USER], "")),
        ([USER], [said("")], ([USER], "")),
        ([USER], [said(None)], ([USER], None)),
        ([USER], [], ([USER], None)),
        ([USER], [TOOL], ([USER], None)),
    ],
)
def test_what_is_judged_is_the_last_message_of_the_assistant_and_what_came_before_is_the_prompt(
    prompt: Any, completion: Any, expected: Any
) -> None:
    assert conversation(prompt, completion) == expected


def test_a_column_that_is_no_list_or_too_short_is_no_column() -> None:
    rows = list(rows_of(["a", "b"], ["c", "d"], {"one": [1, 2], "text": "xy", "short": [1], "trainer_state": [1, 2], "n": 3}))
    assert rows == [{"one": 1, "short": 1, "prompt": "a", "response": "c"}, {"one": 2, "prompt": "b", "response": "d"}]
