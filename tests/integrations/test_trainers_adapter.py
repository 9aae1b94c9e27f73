"""What every trainer's adapter makes of a row and of a missing reward."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import pytest
from adapter_fakes import FakeScorer, made_of, number_or_late

from qreward.errors import ConfigError, RequestTimeout
from qreward.integrations import verl as function
from qreward.integrations.trainers import Adapter, RewardConfig
from qreward.judge.types import Verdict

ADAPTER = Adapter("mine", 60.0, {"prompt": ("question", "prompt"), "response": ("text",), "reference": ("answer",)}, missing="none")
JUDGE = {"model": "j", "prompt": "{rubric} {prompt} {response} {topic} {tenant} {unknown}", "system": "Be {{fair}} on {source}."}


def test_columns_that_the_settings_name_come_first_then_the_default_ones_then_those_of_the_prompts_fields() -> None:
    row: dict[str, Any] = {"question": "2 + 2?", "prompt": "other", "text": "4", "answer": "four"}
    row |= {"extra": {"text": "deep", "a.b": 1}, "rubric": "strict"}
    row |= {"source": "sums", "fair": 2, "tenant": "x", "a.b": "dotted"}
    table: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"reward_model": "rm"}, {"prompt": "2 + 2?", "response": "4", "reference": "four"}),
        ({"reward_model": "rm", "columns": {"prompt": "extra.text"}}, {"prompt": "deep", "response": "4", "reference": "four"}),
        ({"reward_model": "rm", "columns": {"response": "a.b"}}, {"prompt": "2 + 2?", "response": "dotted", "reference": "four"}),
        (
            {"judge": JUDGE, "columns": {"topic": "question"}},
            {"prompt": "2 + 2?", "response": "4", "reference": "four", "rubric": "strict", "topic": "2 + 2?", "source": "sums"},
        ),
    ]
    wrong = [(given, found) for given, wanted in table if (found := ADAPTER.item(row, RewardConfig(**given))) != wanted]
    assert wrong == []
    judge: Any = {"model": "j", "prompt": "{response}"}
    assert ADAPTER.item({"text": "4"}, RewardConfig(judge=judge)) == {"prompt": "", "response": "4"}


def test_a_column_that_is_not_there_is_a_wrong_setting_and_those_there_are_are_listed() -> None:
    for columns, says in (
        ({}, "the data has no column with the prompt"),
        ({"prompt": "asked"}, "prompt is mapped to 'asked', which the data does not have"),
        ({"topic": "a.b"}, "topic is mapped to 'a.b'"),
    ):
        with pytest.raises(ConfigError, match=rf"{says}.*[Tt]here are 'a', 'text'") as caught:
            ADAPTER.item({"text": "4", "a": 1}, RewardConfig(reward_model="rm", columns=columns))
        assert caught.value
    with pytest.raises(ConfigError, match="did you mean 'text'"):
        ADAPTER.item({"text": "4"}, RewardConfig(reward_model="rm", columns={"prompt": "txt"}))
    row = {"text": "4", "prompt": "2 + 2?", "extra": {"answer": "4"}}
    with pytest.raises(ConfigError, match=r"reference is mapped to 'extra\.anwser', .*; did you mean 'extra\.answer'"):
        ADAPTER.item(row, RewardConfig(reward_model="rm", columns={"reference": "extra.anwser"}))
    assert ADAPTER.item(row, RewardConfig(reward_model="rm", columns={"reference": "extra.proof"}))["reference"] is None


async def test_a_missing_reward_is_logged_with_its_effect_and_is_what_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    adapter = replace(ADAPTER, effect="; so it is")
    for on_failure, wanted in (("default", None), ("none", None), (0.0, 0.0), (-1.0, -1.0)):
        made = made_of(FakeScorer(number_or_late), on_failure=on_failure)
        rows = [{"prompt": "p", "text": text} for text in ("0.5", "late", None)]
        found = [adapter.reward(scored, made.config) for scored in await adapter.score(made, rows)]
        assert found == [0.5, wanted, wanted], on_failure
    assert [record.getMessage() for record in caplog.records][:2] == [
        "no reward: RequestTimeout: no answer in time (on_failure: default); so it is",
        "no reward: BadRequest: there is no response to score: it is None (on_failure: default); so it is",
    ]
    made = made_of(FakeScorer(number_or_late), on_failure="raise")
    (late,) = await ADAPTER.score(made, [{"prompt": "p", "text": "late"}])
    with pytest.raises(RequestTimeout):
        ADAPTER.reward(late, made.config)


def test_the_reference_is_never_read_from_the_response_nor_is_that_suggested() -> None:
    refused: list[dict[str, str]] = [
        {"reference": "text"},
        {"reference": "x", "response": "x"},
        {"reference": "text", "response": "x"},
        {"response": "answer"},
    ]
    for columns in refused:
        config = RewardConfig(reward_model="rm", columns=columns)
        with pytest.raises(ConfigError, match=r"columns: the reference is read from '(text|x|answer)', which is the response"):
            ADAPTER.checked(config)
    for columns in ({}, {"reference": "gold"}, {"response": "x"}, {"response": "answer", "reference": "gold"}):
        config = RewardConfig(reward_model="rm", columns=columns)
        assert ADAPTER.checked(config) is config
    row, verl = {"solution_str": "4", "ground_truth": "four", "extra_info": {}, "question": "2 + 2?"}, function.ADAPTER
    for wrong, wanted in (
        ("solution", "ground_truth"),
        ("truth", "ground_truth"),
        ("solution_string", "ground_truth"),
        ("questions", "question"),
    ):
        with pytest.raises(ConfigError, match=f"did you mean '{wanted}'"):
            verl.item(row, RewardConfig(reward_model="rm", columns={"reference": wrong}))
    with pytest.raises(ConfigError, match="such as 'ground_truth'"):
        verl.checked(RewardConfig(reward_model="rm", columns={"reference": "solution_str"}))


class Strict(FakeScorer):
    """Raises what a judge raises for an item without a field that its prompt names."""

    async def score(self, prompt: Any, response: Any, **given: Any) -> Verdict:
        if prompt is None or given["reference"] is None or given.get("rubric") is None:
            raise ConfigError("the prompt names a field that the item does not have")
        return await super().score(prompt, response, **given)


async def test_a_row_without_a_value_fails_alone_and_a_column_that_does_not_exist_is_a_wrong_setting_in_any_order() -> None:
    judge = {"model": "j", "prompt": "{prompt} {response} {reference} {rubric}"}
    whole: dict[str, Any] = {"prompt": "p", "text": "1", "answer": "a", "rubric": "b", "more": {"c": "d"}}
    rows: list[dict[str, Any]] = [{**whole, name: nothing} for name in ("prompt", "answer", "rubric") for nothing in (None, nan)]
    rows += [{**whole, "answer": " "}]
    for row in rows:  # each alone and first, as a trainer that scores one sample at a time has them
        made = made_of(Strict(), judge=judge, on_failure=-1.0)
        for several, wanted in (([row], [False]), ([row, whole], [False, True]), ([whole, row], [True, False])):
            assert [each.ok for each in await ADAPTER.score(made, several)] == wanted, row
    for missing in ("prompt", "answer", "rubric"):
        row = {name: value for name, value in whole.items() if name != missing}
        for several in ([row], [row, row]):
            made = made_of(Strict(), judge=judge)
            await ADAPTER.score(made, [whole])
            with pytest.raises(ConfigError):
                await ADAPTER.score(made, several)
    made = made_of(Strict(), judge=judge, columns={"reference": "more.c"})
    for lacking in ({**whole, "more": {}}, {**whole, "more": None}):  # an entry may be missing in some rows, also in the only row
        for several, wanted in (([lacking], [False]), ([lacking, whole], [False, True])):
            assert [each.ok for each in await ADAPTER.score(made, several)] == wanted
