"""Hedges as calls see them, for both kinds of functions. The rules are in tests/scheduler/functions."""

from __future__ import annotations

from typing import Any

import pytest
from schedule_runs import KINDS, SLACK, at_times, kind_name

pytestmark = pytest.mark.parametrize("kind", KINDS, ids=kind_name)


def test_the_first_result_counts_and_the_other_try_is_cancelled_or_dropped(kind: Any) -> None:
    outcome = kind.run(lambda number, *_: (100.0 if number == 0 else 1.0, number), at_times([0]), hedged_request_time=0.5)
    assert outcome.values == [1]
    assert outcome.calls[0].at == pytest.approx(1.5, abs=SLACK), "the loser delays nobody"
    assert outcome.cancelled == ([0] if kind.cancels else [])
    assert (outcome.stats.hedges, outcome.stats.hedges_won) == (1, 1)


def test_there_are_at_most_so_many_hedges_a_call(kind: Any) -> None:
    outcome = kind.run(lambda number, *_: (10.0, number), at_times([0]), hedged_request_time=1, hedged_request_max_times=3)
    assert [round(time) for time in outcome.times] == [0, 1, 2, 3]
    assert outcome.values == [0]


def test_a_percentile_is_that_of_the_functions_own_times(kind: Any) -> None:
    stuck: list[int] = []

    def behave(number: int, place: int) -> tuple[float, Any]:
        if place == 60:
            stuck.append(number)
        return 50.0 if stuck == [number] else 1.0 + place % 10 / 10, number

    outcome = kind.run(behave, [*((2 * n, n) for n in range(60)), (200, 60)], hedged_request_time="p90")
    assert 1.7 < outcome.times[-1] - 200 < 2.1, "about the 90th percentile of 1.0 to 1.9"
    assert outcome.calls[-1].at < 204


def test_there_are_at_most_so_many_hedges_over_all_calls(kind: Any) -> None:
    outcome = kind.run(lambda number, *_: (10.0, number), at_times(range(105)), hedged_request_time=1, hedged_request_proportion=0.1)
    assert outcome.stats.hedges == 20, "ten from the start, and a tenth of a hundred and five calls"
