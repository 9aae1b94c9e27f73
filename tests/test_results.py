"""Results: a failure is a typed value with its trail, order is that of the input, and nothing is ever ``None`` by silence."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from qreward import AttemptRecord, BatchResult, BatchStats, EndpointStats, NoEndpoint, QRewardError, RateLimited, Result, Usage
from qreward.codecs.rewards.answers import RewardScore
from qreward.records import retries
from qreward.results import FleetStats, with_trail

TRIED = AttemptRecord("gpu-0", "transient", 0.5, 500, "boom")


class Words:
    """An answer of the wire that counts how often it is built. At module level, so that it can be pickled."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.usage: Usage | None = Usage(3, 4, 7)
        self.built = 0

    def build(self) -> Any:
        self.built += 1
        return {"words": self.words}

    def text(self) -> str:
        return self.words


def answered(index: int = 0, words: str = "yes", trail: tuple[AttemptRecord, ...] = ()) -> Result[Any]:
    return Result(index, Words(words), None, "gpu-1", 1.5, 0.25, trail)


def failed(index: int = 0, error: QRewardError | None = None, trail: tuple[AttemptRecord, ...] = (TRIED,)) -> Result[Any]:
    return Result(index, None, error or RateLimited("gpu-0 has no room"), "gpu-0", 0.0, 0.25, trail)


def batch(*results: Result[Any]) -> BatchResult[Any]:
    bad = sum(not result.ok for result in results)
    return BatchResult(list(results), BatchStats(items=len(results), ok=len(results) - bad, failed=bad, seconds=2.0))


def test_an_answer_gives_its_value_words_usage_and_trail() -> None:
    result = answered(trail=(TRIED,))
    assert result.ok
    assert result.value == {"words": "yes"}
    assert result.text == "yes"
    assert result.usage == Usage(3, 4, 7)
    assert result.attempts == (TRIED, AttemptRecord("gpu-1", "ok", 1.5))


def test_the_value_is_built_when_it_is_first_asked_for_and_only_then() -> None:
    answer = Words("yes")
    result: Result[Any] = Result(0, answer, None, "gpu-1", 1.5, 0.25)
    assert answer.built == 0
    assert result.value is result.value
    assert answer.built == 1


def test_a_failure_raises_its_own_error_when_its_value_or_words_are_read() -> None:
    error = RateLimited("gpu-0 has no room", endpoint="gpu-0", status_code=429)
    result = failed(error=error)
    assert not result.ok
    assert result.usage is None
    assert result.attempts == (TRIED,)
    for read in (lambda: result.value, lambda: result.text):
        with pytest.raises(RateLimited) as caught:
            read()
        assert caught.value is error


def test_a_result_shows_its_place_outcome_endpoint_and_tries_and_a_batch_its_size_and_failures() -> None:
    assert repr(answered(3, trail=(TRIED,))) == "<Result 3 ok endpoint='gpu-1' attempts=2>"
    assert repr(failed(4)) == "<Result 4 RateLimited: gpu-0 has no room endpoint='gpu-0' attempts=1>"
    assert repr(batch(answered(0), failed(1))) == "<BatchResult 2 items, 1 failed>"
    assert repr(BatchResult([], BatchStats(items=3, ok=2, failed=1))) == "<BatchResult 3 items, 1 failed, results not kept>"


def test_a_batch_is_a_sequence_of_results_in_the_order_of_the_input() -> None:
    first, second, third = answered(0, "a"), failed(1), answered(2, "c")
    made = batch(first, second, third)
    assert isinstance(made, Sequence)
    assert len(made) == 3
    assert made[0] is first
    assert made[-1] is third
    assert made[1:] == [second, third]
    assert list(made) == [first, second, third]
    assert list(reversed(made)) == [third, second, first]
    assert second in made
    assert made.index(third) == 2
    with pytest.raises(IndexError):
        _ = made[3]


def test_texts_and_values_hold_the_default_where_an_item_failed_and_never_shift() -> None:
    made = batch(answered(0, "a"), failed(1), answered(2, ""))
    assert made.texts() == ["a", None, ""]
    assert made.texts("?") == ["a", "?", ""]
    assert made.values(default=0.0) == [{"words": "a"}, 0.0, {"words": ""}]


def test_the_errors_of_a_batch_can_be_caught_by_their_kind() -> None:
    made = batch(answered(0), failed(1), failed(2, NoEndpoint("no route for 'x'")), failed(3))
    limited: list[BaseException] = []
    unrouted: list[BaseException] = []
    try:
        made.raise_for_errors()
    except* RateLimited as group:
        limited.extend(group.exceptions)
    except* NoEndpoint as group:
        unrouted.extend(group.exceptions)
    assert limited == [made[1].error, made[3].error]
    assert unrouted == [made[2].error]
    assert made.errors == {1: made[1].error, 2: made[2].error, 3: made[3].error}
    with pytest.raises(ExceptionGroup, match="3 of 4 items failed"):
        made.raise_for_errors()
    fine = batch(answered(0), answered(1))
    assert fine.raise_for_errors() is fine


def test_an_empty_batch_is_a_good_batch() -> None:
    made = batch()
    assert (len(made), made.texts(), made.values(), made.errors) == (0, [], [], {})
    assert made.raise_for_errors() is made


def test_a_batch_keeps_everything_between_processes() -> None:
    made = batch(answered(0, "a", (TRIED,)), failed(1))
    there = pickle.loads(pickle.dumps(made))
    assert there.texts() == ["a", None]
    assert there.stats == made.stats
    assert [result.attempts for result in there] == [result.attempts for result in made]
    assert (there[0].endpoint, there[0].latency, there[0].queued, there[0].usage) == ("gpu-1", 1.5, 0.25, Usage(3, 4, 7))
    assert str(there.errors[1]) == "gpu-0 has no room"


def test_printed_statistics_are_a_table_with_a_line_for_each_endpoint() -> None:
    endpoints = {"b": EndpointStats(sent=4, answered=2, rejected=1, retried=1, p50=0.25, p95=0.5), "a": EndpointStats(sent=1, failed=1)}
    table = [
        "endpoint  sent  answered  rejected  retried  hedged  failed     p50     p95",
        "a            1         0         0        0       0       1       -       -",
        "b            4         2         1        1       0       0  250 ms  500 ms",
    ]
    assert str(BatchStats(3, 2, 1, 3.0, endpoints)).splitlines() == ["3 items, 2 ok, 1 failed, 3.00 s", *table]
    assert str(BatchStats(3, 2, 1, 3.0, endpoints, cost=0.5)).splitlines()[0] == "3 items, 2 ok, 1 failed, 3.00 s, $0.5000"
    cached = {"a": EndpointStats(prompt_tokens=300, cached_tokens=210), "b": EndpointStats(prompt_tokens=100, cached_tokens=74)}
    assert str(BatchStats(3, 3, 0, 3.0, cached)).splitlines()[0] == "3 items, 3 ok, 0 failed, 3.00 s, prefix cache: 71% of prompt tokens"
    assert str(FleetStats(endpoints)).splitlines() == table
    assert str(BatchStats()) == "0 items, 0 ok, 0 failed, 0.00 s"


def test_an_attempt_after_a_failure_is_a_retry_and_one_after_a_429_is_not() -> None:
    def attempts(text: str) -> list[AttemptRecord]:
        kinds = {"r": "overloaded", "f": "transient", "t": "timeout", "c": "cancelled", "k": "ok"}
        return [AttemptRecord("a", kinds[letter.lower()], 0.1, hedge=letter.isupper()) for letter in text]

    cases = {"": 0, "k": 0, "rrk": 0, "fk": 1, "ffk": 2, "rfk": 1, "frk": 2, "cK": 0, "fcK": 1, "tr": 1, "f": 0}
    assert {text: len(list(retries(attempts(text)))) for text in cases} == cases


class Judged:
    """A value with a reward, as a judge's verdict has."""

    def __init__(self, score: Any) -> None:
        self.score = score


class Holding(Words):
    """An answer whose value is what it was given."""

    def __init__(self, value: Any) -> None:
        super().__init__("")
        self.value = value

    def build(self) -> Any:
        return self.value


def holding(*values: Any) -> list[Result[Any]]:
    return [Result(index, Holding(value), None, "gpu-1", 1.5, 0.25) for index, value in enumerate(values)]


def test_scores_are_the_rewards_as_floats() -> None:
    made = batch(*holding(RewardScore(0.25, {"help": 0.25}), Judged(0.75), 1.0))
    assert made.scores() == [0.25, 0.75, 1.0]
    assert {type(score) for score in made.scores()} == {float}


def test_a_failed_item_has_the_default_as_its_score_or_raises_without_one() -> None:
    made = batch(*holding(0.5), failed(1))
    assert made.scores(default=None) == [0.5, None]
    assert made.scores(default=-1.0) == [0.5, -1.0]
    with pytest.raises(ExceptionGroup, match="1 of 2 items failed"):
        made.scores()


@pytest.mark.parametrize("value", [{"words": "yes"}, "0.5", Judged(None), Judged(True)])
def test_an_answer_that_is_no_reward_has_no_score(value: Any) -> None:
    with pytest.raises(TypeError, match=r"scores\(\) needs the results of"):
        batch(*holding(value)).scores()


def test_stats_and_records_are_values_that_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        EndpointStats().sent = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        TRIED.latency = 0.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Usage().total_tokens = 1  # type: ignore[misc]


def test_an_error_gets_its_trail_where_its_kind_carries_one() -> None:
    limited = RateLimited("gpu-0 has no room")
    assert with_trail(limited, (TRIED,)) is limited
    assert limited.attempts == (TRIED,)
    unrouted = NoEndpoint("no route for 'x'")
    assert with_trail(unrouted, (TRIED,)) is unrouted
    assert not hasattr(unrouted, "attempts")
