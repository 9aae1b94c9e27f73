"""Rows to rewards for ROLL: order, metrics, and what becomes of a failure."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from adapter_fakes import FakeScorer, made_of, number_or_late

from qreward.errors import ConfigError
from qreward.integrations.roll.rewards import Drops, RewardUnavailable, failure_of, judge_rows, rows_of
from qreward.integrations.trainers import Rewarder


def rows(*responses: str, **columns: list[Any]) -> list[dict[str, Any]]:
    return rows_of(columns, [f"user\nquestion {at}" for at in range(len(responses))], responses)


async def judged(made: Rewarder, given: list[dict[str, Any]]) -> tuple[list[float], dict[str, list[float]]]:
    return await judge_rows(made, made.config, given)


async def test_scores_come_in_order_with_a_number_for_each_row_in_each_metric() -> None:
    scores, metrics = await judged(made_of(FakeScorer(number_or_late)), rows("0.25", "1", "-3"))
    assert scores == [0.25, 1.0, -3.0]
    assert {name: len(values) for name, values in metrics.items()} == dict.fromkeys(
        ("judge/ok", "judge/errors", "judge/seconds", "judge/tokens"), 3
    )
    assert metrics["judge/ok"] == [1.0] * 3
    assert metrics["judge/tokens"] == [7.0] * 3


async def test_a_failed_judge_never_becomes_0_unless_the_user_chose_it() -> None:
    given = rows("1", "what?", "0.5")
    chosen: list[dict[str, Any]] = [{}, {"on_failure": "raise"}, {"on_failure": "default"}]
    for settings in chosen:
        with pytest.raises(RewardUnavailable, match="1 of 3 rewards are missing; the first: RequestTimeout: no answer"):
            await judged(made_of(FakeScorer(number_or_late), **settings), given)
    scores, metrics = await judged(made_of(FakeScorer(number_or_late), on_failure=-0.5), given)
    assert scores == [1.0, -0.5, 0.5]
    assert metrics["judge/ok"] == [1.0, 0.0, 1.0]
    assert metrics["judge/errors"] == [0.0, 1.0, 0.0]
    assert (await judged(made_of(FakeScorer(number_or_late), on_failure=0), given))[0] == [1.0, 0.0, 0.5]


def test_none_is_refused_as_each_row_must_have_a_number() -> None:
    config = made_of(FakeScorer(number_or_late), on_failure="none").config
    with pytest.raises(ConfigError, match="SkippingRolloutLoop"):
        failure_of(config)


def test_the_error_survives_the_way_through_ray() -> None:
    error = pickle.loads(pickle.dumps(RewardUnavailable("1 of 3")))
    assert isinstance(error, RewardUnavailable)
    assert str(error) == "1 of 3"


@pytest.mark.parametrize("number", ["1e5", "-1e5"])
async def test_a_score_that_float16_cannot_hold_is_refused(number: str) -> None:
    with pytest.raises(ConfigError, match="float16"):
        await judged(made_of(FakeScorer(number_or_late)), rows(number))
    config = made_of(FakeScorer(number_or_late), on_failure=1e5).config
    with pytest.raises(ConfigError, match="float16"):
        failure_of(config)


async def test_an_item_has_the_conversation_of_the_data_set_and_its_reference() -> None:
    scorer = FakeScorer(number_or_late)
    said = [{"role": "user", "content": "2 + 2?"}]
    given = rows("1", "2", messages=['[{"role": "user", "content": "2 + 2?"}]', said], ground_truth=["4", "5"], id=["a", "b"])
    await judged(made_of(scorer), given)
    assert scorer.asked == [
        {"prompt": said, "response": "1", "reference": "4"},
        {"prompt": said, "response": "2", "reference": "5"},
    ]


def test_a_column_of_another_length_belongs_to_no_row() -> None:
    assert rows_of({"whole": ["only one"]}, ["p", "q"], ["a", "b"]) == [
        {"prompts": "p", "responses": "a"},
        {"prompts": "q", "responses": "b"},
    ]


def test_drops_in_a_row_end_in_an_error_and_one_that_is_kept_begins_anew() -> None:
    drops = Drops("prompts", most=3)
    for _ in range(2):
        drops.dropped()
    drops.check("429")
    drops.kept()
    for _ in range(2):
        drops.dropped()
    drops.check("429")
    drops.dropped()
    with pytest.raises(RewardUnavailable, match=r"3 prompts in a row were dropped, because rewards are missing\. The last: 429"):
        drops.check("429")
